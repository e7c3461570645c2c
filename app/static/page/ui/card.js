// The model card, rendered from the Markdown beside the model: headings, paragraphs, lists, tables, code, bold.

import { byId, element } from "./dom.js";
import { pageFacts } from "./service.js";

const INLINE = /(\*\*[^*]+\*\*|`[^`]+`|\[[^\]]+\]\([^)\s]+\))/;

function inline(text) {
  return text.split(INLINE).map((part) => {
    if (part.startsWith("**")) return element("strong", {}, part.slice(2, -2));
    if (part.startsWith("`")) return element("code", {}, part.slice(1, -1));
    const link = part.match(/^\[([^\]]+)\]\((https?:[^)\s]+)\)$/);
    return link ? element("a", { href: link[2], rel: "noreferrer" }, link[1]) : part;
  });
}

function table(lines) {
  const rows = lines.map((line) => line.replace(/^\||\|$/g, "").split("|").map((text) => text.trim()));
  const body = rows.filter((row, place) => place !== 1).map((row, place) =>
    element("tr", {}, ...row.map((text) => element(place === 0 && text ? "th" : "td", {}, ...inline(text)))));
  const empty = rows[0].every((text) => !text);
  return element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" },
    element("table", {}, element("tbody", {}, ...(empty ? body.slice(1) : body))));
}

function block(text) {
  const lines = text.split("\n");
  const heading = text.match(/^(#{1,4}) (.*)$/);
  if (heading) return element(`h${heading[1].length}`, {}, ...inline(heading[2]));
  if (lines[0].startsWith("|")) return table(lines);
  if (/^[-*] /.test(text)) {
    return element("ul", {}, ...text.split(/\n(?=[-*] )/).map((item) => element("li", {}, ...inline(item.slice(2)))));
  }
  return element("p", {}, ...inline(text));
}

async function address() {
  const { service } = await pageFacts();
  if (!service) return "page/card.md";
  const { models } = await (await fetch("v1/models")).json();
  return `v1/models/${encodeURIComponent(models[0].name)}/card`;
}

async function show() {
  const card = await (await fetch(await address())).text();
  const blocks = card.trim().split(/\n\s*\n|\n(?=#{1,4} )|(?<=^#{1,4} .*)\n/m).filter((text) => text.trim());
  byId("document").replaceChildren(...blocks.map(block));
}

show().catch((error) => byId("document").replaceChildren(element("p", {}, `The card cannot be shown: ${error.message}`)));
