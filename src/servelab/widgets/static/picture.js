// Draws a frame (servelab.figures.frame) as SVG, and the panel in which "what next?" asks and answers.
// No layout happens here: every coordinate comes from Python.

const escapeText = (text) =>
  String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

const anchors = { left: "start", center: "middle", right: "end" };

function textMark(x, y, text, style, size, align, bold) {
  const weight = bold ? ' font-weight="650"' : "";
  return `<text x="${x}" y="${y}" class="sl-t-${style}" font-size="${size}" text-anchor="${anchors[align]}" dominant-baseline="central"${weight}>${escapeText(text)}</text>`;
}

function drawMark(mark) {
  const title = mark.title ? `<title>${escapeText(mark.title)}</title>` : "";
  switch (mark.shape) {
    case "text":
      return textMark(mark.x, mark.y, mark.text, mark.style, mark.size, mark.align, mark.bold);
    case "path":
      return `<path d="${mark.d}" class="sl-${mark.style}"${mark.link ? ` data-link="${mark.link}"` : ""}/>`;
    case "dot":
      return `<circle cx="${mark.x}" cy="${mark.y}" r="${mark.r}" class="sl-${mark.style}"/>`;
    case "rect": {
      const box = `<rect x="${mark.x}" y="${mark.y}" width="${mark.w}" height="${mark.h}" rx="${Math.min(3, mark.h / 5)}" class="sl-${mark.style}">${title}</rect>`;
      if (!mark.text) return box;
      const middle = [mark.x + mark.w / 2, mark.y + mark.h / 2];
      return box + textMark(...middle, mark.text, mark.style, mark.size || 13, "center", mark.bold);
    }
    default:
      return "";
  }
}

// The cells of a grid that can be pointed at: by mouse anywhere, by keyboard with the arrow keys.
class Grid {
  constructor(mark, svg, choose) {
    Object.assign(this, mark);
    this.svg = svg;
    this.at = Math.max(0, this.kinds.search(/[xsc.]/));
    this.ring = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    this.ring.setAttribute("class", "sl-ring");
    this.ring.setAttribute("visibility", "hidden");
    this.target = document.createElementNS("http://www.w3.org/2000/svg", "g");
    this.target.setAttribute("class", "sl-cells");
    this.target.setAttribute("data-lm-suppress-shortcuts", "true");
    this.hover = document.createElementNS("http://www.w3.org/2000/svg", "title");
    const area = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const rows = Math.ceil(this.kinds.length / this.columns);
    const size = { x: this.x - 8, y: this.y - 7, width: this.columns * this.step[0] + 12, height: rows * this.step[1] + 8 };
    for (const [name, value] of Object.entries(size)) area.setAttribute(name, value);
    area.setAttribute("class", "sl-area");
    this.target.append(this.hover, area, this.ring);
    this.target.addEventListener("mousemove", (event) => this.point(this.under(event)));
    this.target.addEventListener("mouseleave", () => this.point(-1));
    this.target.addEventListener("click", (event) => this.under(event) >= 0 && choose(this.name(this.under(event))));
    this.target.addEventListener("keydown", (event) => this.key(event, choose));
    this.target.addEventListener("focus", () => this.point(this.at));
    this.target.addEventListener("blur", () => this.point(-1));
    svg.append(this.target);
  }

  name(index) {
    return `${this.id}:${index}`;
  }

  label(index) {
    return this.labels[this.kinds[index]].replace("{block}", index);
  }

  under(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale - this.x;
    const y = (event.clientY - box.top) * scale - this.y;
    const index = Math.floor(y / this.step[1]) * this.columns + Math.floor(x / this.step[0]);
    return x >= 0 && x < this.columns * this.step[0] && index < this.kinds.length ? index : -1;
  }

  point(index) {
    this.ring.setAttribute("visibility", index < 0 ? "hidden" : "visible");
    for (const link of this.svg.querySelectorAll("[data-link]")) {
      link.classList.toggle("sl-lit", link.dataset.link === this.name(index));
    }
    if (index < 0) return;
    const [x, y, w, h] = this.cell;
    const left = this.x + (index % this.columns) * this.step[0] + x;
    const top = this.y + Math.floor(index / this.columns) * this.step[1] + y;
    for (const [name, value] of Object.entries({ x: left - 1, y: top - 1, width: w + 2, height: h + 2 })) {
      this.ring.setAttribute(name, value);
    }
    this.hover.textContent = this.label(index);
    this.target.setAttribute("aria-label", this.label(index));
  }

  key(event, choose) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns };
    if (event.key in moves) {
      this.at = Math.min(Math.max(this.at + moves[event.key], 0), this.kinds.length - 1);
      this.point(this.at);
    } else if (event.key === "Enter" || event.key === " ") {
      choose(this.name(this.at));
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  // While a question is open, the grid is one button that says which cell it stands on.
  arm(isOpen) {
    this.target.classList.toggle("sl-armed", isOpen);
    if (!isOpen) {
      for (const name of ["tabindex", "role", "aria-label"]) this.target.removeAttribute(name);
      return;
    }
    this.target.setAttribute("tabindex", "0");
    this.target.setAttribute("role", "button");
    this.target.setAttribute("aria-label", this.label(this.at));
  }
}

function drawFrame(holder, frame, choose) {
  if (!frame.marks) return null;
  holder.innerHTML = `<svg viewBox="0 0 ${frame.width} ${frame.height}" width="${frame.width}" height="${frame.height}" role="group" aria-label="${escapeText(frame.alt)}">${frame.marks.map(drawMark).join("")}</svg>`;
  const mark = frame.marks.find((item) => item.shape === "grid");
  return mark ? new Grid(mark, holder.firstChild, choose) : null;
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  // JupyterLab looks for this on the focused element itself; without it, it takes the arrow keys.
  if (["button", "input", "select"].includes(tag)) element.dataset.lmSuppressShortcuts = "true";
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function drawLegend(holder, frame) {
  const swatch = (style) => make("span", { class: `sl-swatch sl-${style}` });
  holder.replaceChildren(...(frame.legend || []).map(([style, label]) => make("li", {}, swatch(style), label)));
}

// The open question and the last verdict. `send` hands what the learner did to Python.
function drawAsk(holder, model, send) {
  const words = model.get("words");
  const question = model.get("question");
  const feedback = model.get("feedback");
  const parts = [];
  if (question.prompt) {
    const choices = question.choices.map(([id, label]) =>
      make("button", { class: "sl-choice", onclick: () => send({ do: "answer", choice: id }) }, label),
    );
    const skip = make("button", { class: "sl-quiet", onclick: () => send({ do: "skip" }) }, words.skip);
    parts.push(
      make("p", { class: "sl-prompt" }, question.prompt),
      make("p", { class: "sl-rule" }, question.rule + (question.pointing ? ` ${words.point}` : "")),
      make("div", { class: "sl-choices" }, ...choices, skip),
    );
  } else if (feedback.text) {
    const [right, asked] = model.get("score");
    const score = asked ? words.score.replace("{right}", right).replace("{asked}", asked) : "";
    const mark = make("span", { class: "sl-mark", "aria-hidden": "true" }, feedback.right ? "✓" : "✗");
    parts.push(
      make("p", { class: feedback.right ? "sl-verdict sl-good" : "sl-verdict sl-bad" }, mark, feedback.text),
      make("p", { class: "sl-rule" }, score),
    );
  }
  holder.replaceChildren(...parts);
  holder.hidden = parts.length === 0;
}

// Tells Python how wide the picture may be.
function watchWidth(model, element) {
  const observer = new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width / 20) * 20;
    if (width > 0 && width !== model.get("width")) {
      model.set("width", width);
      model.save_changes();
    }
  });
  observer.observe(element);
  return () => observer.disconnect();
}
