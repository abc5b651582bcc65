// Search without a server: every word of the query must occur in a section; titles count most.
const query = document.getElementById("query");
const found = document.getElementById("found");
const base = document.body.dataset.base;

function score(section, words) {
  const title = `${section.title} ${section.page}`.toLowerCase(), text = section.text.toLowerCase();
  let sum = 0;
  for (const word of words) {
    if (title.includes(word)) sum += 10;
    else if (text.includes(word)) sum += 1;
    else return 0;
  }
  return sum;
}

function show() {
  const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  found.hidden = !words.length;
  const hits = window.SECTIONS.map(section => [score(section, words), section]).filter(([sum]) => sum);
  hits.sort((a, b) => b[0] - a[0]);
  const list = document.createElement("ul");
  for (const [, section] of hits.slice(0, 12)) {
    const link = document.createElement("a");
    link.href = `${base}/${section.url}`;
    link.textContent = section.title === section.page ? section.title : `${section.title} (${section.page})`;
    list.appendChild(document.createElement("li")).appendChild(link);
  }
  found.replaceChildren(hits.length ? list : "Nothing found.");
}

query.addEventListener("input", show);
query.form.addEventListener("submit", event => event.preventDefault());
document.addEventListener("click", event => { if (event.target.closest("#found a")) found.hidden = true; });
