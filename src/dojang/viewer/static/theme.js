// Sets the chosen theme before the page is painted. A browser that keeps nothing follows the system's theme.
{
  let chosen = "";
  try {
    chosen = localStorage.getItem("dojang-theme") ?? "";
  } catch {
    // storage is switched off
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
