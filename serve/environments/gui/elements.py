"""The JavaScript that is run on elements, in a world of its own: the page's scripts neither see nor change it.

What it does: finds out where an element can be clicked and why it can't; sets values where keys would not do; scrolls;
waits until the page is quiet. Each is the declaration of a function whose `this` is the element, or an expression.
What it leaves out: mouse and keyboard, which Playwright drives as a user's hand would.
"""

# Where to point at the element: {x, y}, or {fault}: a sentence's end that follows the element's name.
POINT = """function (usable) {
  const el = this.nodeType === 1 ? this : this.parentElement;
  if (!el || !el.isConnected) return {fault: 'is no longer on the page'};
  const control = el.closest('button, input, select, textarea, option, fieldset') || el;
  if (usable && (control.matches(':disabled') || el.closest('[aria-disabled="true"]'))) return {fault: 'is disabled'};
  const label = el.labels && el.labels[0];
  const box = (one) => [...one.getClientRects()].find((r) => r.width > 1 && r.height > 1);
  const seen = (one) => box(one) && getComputedStyle(one).visibility !== 'hidden';
  let at = seen(el) ? el : label && seen(label) ? label : null;
  if (!at) return {fault: 'is hidden'};
  if (el.closest('[inert]')) return {fault: 'is behind something else and cannot be reached'};
  at.scrollIntoViewIfNeeded(true);
  let rect = box(at), hit = null;
  const spot = () => {
    const left = Math.max(rect.left, 0), right = Math.min(rect.right, innerWidth);
    const top = Math.max(rect.top, 0), bottom = Math.min(rect.bottom, innerHeight);
    if (right - left < 1 || bottom - top < 1) return null;
    return {x: (left + right) / 2, y: (top + bottom) / 2};
  };
  const reaches = (p) => {
    hit = p && at.getRootNode().elementFromPoint(p.x, p.y);
    if (!hit) return false;
    return at.contains(hit) || (label && label.contains(hit)) || hit.closest('label')?.control === el;
  };
  let point = spot();
  if (!reaches(point) && at !== label && label && seen(label)) {
    at = label;
    rect = box(at);
    point = spot();
  }
  if (!point) return {fault: 'is outside of the visible page'};
  if (!reaches(point)) {
    const top = hit && (hit.getAttribute('aria-label') || hit.textContent || hit.tagName).trim().slice(0, 40);
    return {fault: 'is covered by something else' + (top ? ` ("${top}")` : '')};
  }
  return point;
}"""

# What kind of typing the element takes: {kind: "keys" | "value"}, or {fault}.
TYPING = """function () {
  const el = this;
  if (el.isContentEditable) return {kind: 'keys'};
  if (!(el instanceof HTMLInputElement || el instanceof HTMLTextAreaElement)) return {fault: 'takes no text'};
  if (el.disabled) return {fault: 'is disabled'};
  if (el.readOnly) return {fault: 'is read-only'};
  if (el instanceof HTMLTextAreaElement) return {kind: 'keys'};
  if (['date', 'time', 'month', 'week', 'datetime-local', 'color', 'range'].includes(el.type)) return {kind: 'value'};
  if (['text', 'search', 'email', 'url', 'tel', 'password', 'number'].includes(el.type)) return {kind: 'keys'};
  return {fault: 'takes no text'};
}"""

# Set the value of a date, a time, a colour or a slider: {} or {fault}.
SET_VALUE = """function (text) {
  const before = this.value;
  this.focus();
  this.value = text;
  if (this.value !== text) {
    this.value = before;
    const form = {date: '2026-03-31', time: '14:30', month: '2026-03', week: '2026-W14', color: '#ff0000'}[this.type];
    return {fault: `does not take "${text}"` + (form ? `; write it like ${form}` : '')};
  }
  this.dispatchEvent(new Event('input', {bubbles: true}));
  this.dispatchEvent(new Event('change', {bubbles: true}));
  return {};
}"""

# Put the caret into a field: at the end, or with everything selected.
FOCUS = """function (everything) {
  this.focus();
  if (this.isContentEditable) {
    const range = document.createRange(), chosen = getSelection();
    range.selectNodeContents(this);
    if (!everything) range.collapse(false);
    chosen.removeAllRanges();
    chosen.addRange(range);
  } else if (everything) {
    this.select();
  } else {
    try { this.setSelectionRange(this.value.length, this.value.length); } catch (error) { /* numbers have no caret */ }
  }
  return document.activeElement === this || this.contains(document.activeElement);
}"""

# Give an element the keys: whether it takes them.
TAKE_KEYS = """function () {
  this.focus();
  return document.activeElement === this;
}"""

# Whether an option belongs to a closed select box: such options have no place on the page.
IN_SELECT = """function () {
  const box = this.closest('select');
  return !!box && !box.multiple && box.size < 2;
}"""

# The middle of the element's visible part, where it stands now.
MIDDLE = """function () {
  const r = this.getBoundingClientRect();
  const middle = (from, to, most) => (Math.max(from, 0) + Math.min(to, most)) / 2;
  return {x: middle(r.left, r.right, innerWidth), y: middle(r.top, r.bottom, innerHeight)};
}"""

# Choose options of a select by their labels or values: {chosen: [...]} or {fault}.
SELECT = """function (wanted) {
  if (!(this instanceof HTMLSelectElement)) return {fault: 'is no select box: click it instead'};
  const fold = (text) => text.trim().replace(/\\s+/g, ' ');
  const options = [...this.options];
  if (wanted.length > 1 && !this.multiple) return {fault: 'takes one option only'};
  const found = wanted.map((w) => options.find((o) => fold(o.label) === fold(w)) || options.find((o) => o.value === w));
  if (found.includes(undefined)) {
    const names = options.slice(0, 40).map((o) => `"${fold(o.label)}"`).join(', ');
    return {fault: `has no option "${wanted[found.indexOf(undefined)]}"; it has ${names}`};
  }
  const barred = found.find((o) => o.disabled || o.closest('optgroup')?.disabled);
  if (barred) return {fault: `has the option "${fold(barred.label)}", but it is disabled`};
  this.focus();
  for (const option of options) option.selected = found.includes(option);
  this.dispatchEvent(new Event('input', {bubbles: true}));
  this.dispatchEvent(new Event('change', {bubbles: true}));
  return {chosen: found.map((o) => fold(o.label))};
}"""

# Scroll what scrolls around the element (or the page) by a share of its size: {moved, rest}, in pixels.
SCROLL = """function (dx, dy) {
  const can = (el) => {
    const style = getComputedStyle(el);
    return (dy && el.scrollHeight > el.clientHeight + 1 && /auto|scroll/.test(style.overflowY)) ||
      (dx && el.scrollWidth > el.clientWidth + 1 && /auto|scroll/.test(style.overflowX));
  };
  const page = document.scrollingElement;
  let el = this.nodeType === 1 ? this : page;
  while (el && el !== page && !can(el)) el = el.parentElement;
  el = el || page;
  const x = el.scrollLeft, y = el.scrollTop;
  const height = el === page ? innerHeight : el.clientHeight, width = el === page ? innerWidth : el.clientWidth;
  el.scrollBy({left: dx * width, top: dy * height, behavior: 'instant'});
  return {moved: Math.round(Math.abs(el.scrollLeft - x) + Math.abs(el.scrollTop - y))};
}"""

# Two frames drawn, and no change of the page for `still` ms (at most `most` ms). Hides the caret, since it blinks.
QUIET = """(still, most) => new Promise((done) => {
  if (!globalThis.caretHidden && document.adoptedStyleSheets) {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync('* { caret-color: transparent !important; }');
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    globalThis.caretHidden = true;
  }
  let last = performance.now();
  const first = last, watch = new MutationObserver(() => { last = performance.now(); });
  watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  const look = () => {
    const now = performance.now();
    if (now - last >= still || now - first >= most) { watch.disconnect(); done(document.readyState); }
    else setTimeout(look, 8);
  };
  requestAnimationFrame(() => requestAnimationFrame(look));
})"""

# Before any script of a page: a clock that stands still and numbers that only look random, the same in every episode.
STEADY = """(() => {
  const now = Date.UTC(2026, 2, 2, 9, 0, 0), Real = Date;
  Real.now = () => now;
  globalThis.Date = new Proxy(Real, {
    construct: (real, given, target) => Reflect.construct(real, given.length ? given : [now], target),
    apply: () => new Real(now).toString(),
  });
  Real.prototype.constructor = globalThis.Date;
  let seed = 20260302;
  Math.random = () => {
    seed = (seed * 1664525 + 1013904223) % 4294967296;
    return seed / 4294967296;
  };
})()"""
