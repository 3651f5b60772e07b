// Draws diagrams with the copy of mermaid that belongs to the site, in the colours of the page, and again when they
// change. The theme would load mermaid from elsewhere for blocks of the class "mermaid"; these have another one.
(() => {
  if (typeof mermaid === "undefined") return;

  const dark = () => document.body.getAttribute("data-md-color-scheme") === "slate";

  const draw = async () => {
    const blocks = [...document.querySelectorAll("pre.diagram")];
    if (!blocks.length) return;
    const font = getComputedStyle(document.body).fontFamily;
    mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: dark() ? "dark" : "neutral", fontFamily: font });
    for (const [number, block] of blocks.entries()) {
      block.dataset.text ??= block.textContent;
      try {
        const { svg } = await mermaid.render(`diagram-${number}`, block.dataset.text);
        block.innerHTML = svg;
        block.classList.add("drawn");
      } catch (problem) {
        block.textContent = block.dataset.text;
        console.warn("a diagram cannot be drawn", problem);
      }
    }
  };

  draw();
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
})();
