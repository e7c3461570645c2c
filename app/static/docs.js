/* global SwaggerUIBundle */
// API description of this service, in the color scheme of the system; nothing is loaded from other origins.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches); // Swagger UI's own class
follow();
dark.addEventListener("change", follow);

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  // The paths of the description start at the folder of this page, which a proxy may have put below its own.
  requestInterceptor: (request) => ({
    ...request,
    url: request.loadSpec ? request.url : request.url.replace(`${location.origin}/`, new URL(".", location).href),
  }),
});
