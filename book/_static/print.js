// Paper is light, whatever the screen is.
addEventListener("beforeprint", () => {
  const page = document.documentElement.dataset;
  page.themeOnScreen = page.theme;
  page.theme = "light";
});
addEventListener("afterprint", () => {
  const page = document.documentElement.dataset;
  page.theme = page.themeOnScreen;
});
