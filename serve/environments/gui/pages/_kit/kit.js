// What our pages share: a view is a function of the state, drawn into the page in place, so that an element stays the same
// element while what it stands for stays.
//
//   const app = start({state: {...}, view: (state) => [h('h1', {}, 'Hello'), ...]})
//   app.set({name: 'x'})            changes the state and draws
//   keep('key', {...})              a state that localStorage holds over reloads (or begins with, if a task says so)
'use strict';

function h(tag, props, ...children) {
  return {tag, props: props || {}, children: children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false)};
}

const SET_AS_PROPERTY = new Set(['value', 'checked', 'selected', 'disabled', 'indeterminate', 'open', 'readOnly', 'required']);

function setProps(el, before, after) {
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const value = after[name];
    if (name === 'key') continue;
    if (name.startsWith('on')) {
      el[name.toLowerCase()] = value || null;
    } else if (SET_AS_PROPERTY.has(name)) {
      const wanted = name in after ? value : name === 'value' ? '' : false;
      if (el[name] !== wanted) el[name] = wanted;
    } else if (before[name] !== value) {
      const words = name.startsWith('aria-') || name === 'draggable'; // true and false are written out
      if (value === undefined || value === null || (value === false && !words)) el.removeAttribute(name);
      else el.setAttribute(name, value === true && !words ? '' : value);
    }
  }
}

const SVG = new Set(['svg', 'path', 'rect', 'circle', 'line', 'g']);

function create(node) {
  if (typeof node !== 'object') return document.createTextNode(String(node));
  const el = SVG.has(node.tag)
    ? document.createElementNS('http://www.w3.org/2000/svg', node.tag) : document.createElement(node.tag);
  draw(el, node.children);
  setProps(el, {}, node.props);
  el._props = node.props;
  return el;
}

function same(el, node) {
  if (typeof node !== 'object') return el.nodeType === 3;
  return el.nodeType === 1 && el.localName === node.tag && (el._props || {}).key === node.props.key;
}

function draw(parent, children) {
  const keyed = new Map();
  for (const el of parent.childNodes) if (el._props && el._props.key !== undefined) keyed.set(el._props.key, el);
  let at = parent.firstChild;
  for (const node of children) {
    const key = typeof node === 'object' ? node.props.key : undefined;
    let el = key !== undefined ? keyed.get(key) : at;
    if (!el || !same(el, node) || (key === undefined && el._props && el._props.key !== undefined)) {
      el = create(node);
      parent.insertBefore(el, at);
    } else {
      if (el === at) at = at.nextSibling;
      else parent.insertBefore(el, at);
      if (typeof node !== 'object') {
        if (el.data !== String(node)) el.data = String(node);
      } else {
        draw(el, node.children);
        setProps(el, el._props || {}, node.props);
        el._props = node.props;
      }
      continue;
    }
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

function start({state, view, title}) {
  const root = document.getElementById('app');
  const app = {
    state,
    set(changes) { Object.assign(app.state, changes); app.draw(); },
    draw() {
      draw(root, [view(app.state)].flat(Infinity).filter(Boolean));
      if (title) document.title = title(app.state);
      for (const [key, value] of kept) localStorage.setItem(key, JSON.stringify(value));
    },
    toast(text) { app.set({toast: text}); },
  };
  window.app = app;
  window.addEventListener('hashchange', () => app.draw());
  app.draw();
  return app;
}

const kept = [];
function keep(key, initial) {
  const stored = localStorage.getItem(key);
  const value = stored === null ? initial : JSON.parse(stored);
  kept.push([key, value]);
  return value;
}

const route = () => location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
const go = (path) => { location.hash = '#/' + path; };

function field(label, input, {hint, error} = {}) {
  const id = input.props.id || 'f-' + label.toLowerCase().replace(/[^a-z0-9]+/g, '-');
  input.props.id = id;
  if (error) Object.assign(input.props, {'aria-invalid': 'true', 'aria-describedby': id + '-error'});
  return h('div', {class: 'field', key: id}, h('label', {for: id}, label), input,
    hint && h('small', {key: 'hint'}, hint), error && h('p', {id: id + '-error', class: 'error', key: 'error'}, error));
}

function select(label, value, options, onchange, props = {}) {
  return h('select', {'aria-label': label, value, onchange: (e) => onchange(e.target.value), ...props},
    options.map((o) => { const [v, t] = Array.isArray(o) ? o : [o, o]; return h('option', {value: v, key: v}, t); }));
}

function button(text, onclick, props = {}) {
  return h('button', {type: 'button', onclick, ...props}, text);
}

function check(label, checked, onchange, props = {}) {
  return h('label', {class: 'check', key: label}, h('input', {type: 'checkbox', checked, onchange: (e) => onchange(e.target.checked), ...props}), label);
}

function dialog(title, body, actions, onclose) {
  return h('div', {class: 'backdrop', key: 'dialog:' + title},
    h('div', {role: 'dialog', 'aria-modal': 'true', 'aria-label': title, class: 'dialog', onkeydown: (e) => { if (e.key === 'Escape' && onclose) onclose(); }},
      h('h2', {}, title), body, h('div', {class: 'actions'}, actions)));
}

const status = (text) => h('p', {role: 'status', class: 'status', key: 'status'}, text || '');
const money = (cents) => '$' + (cents / 100).toFixed(2);
