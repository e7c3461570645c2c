#!/usr/bin/env sh
# Check the page's scripts with ESLint and TypeScript, at the versions of package-lock.json. Without npm, or if the packages are
# neither installed nor to be had (no network), it says so and succeeds.
set -eu
lint=requirements/page/lint
cd "$(dirname "$0")/../../.."
if ! command -v npm >/dev/null; then
  echo "npm is not installed: the page's scripts are not checked." >&2
  exit 0
fi
if ! cmp -s "$lint/package-lock.json" "$lint/node_modules/.installed"; then
  if ! npm ci --prefix "$lint" --ignore-scripts --no-audit --no-fund --fetch-retries=0 --loglevel=silent >/dev/null; then
    echo "ESLint and TypeScript could not be installed: the page's scripts are not checked." >&2
    exit 0
  fi
  cp "$lint/package-lock.json" "$lint/node_modules/.installed"
fi
"$lint/node_modules/.bin/eslint" --no-config-lookup --config "$lint/eslint.config.js" --ignore-pattern "**/runtime/" app/static
"$lint/node_modules/.bin/tsc" --project "$lint"
