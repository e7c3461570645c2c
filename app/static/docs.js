// Opens the API description of this very service, in the colors that the system asks for; nothing is loaded from elsewhere.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches); // Swagger UI's own class
follow();
dark.addEventListener("change", follow);

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
