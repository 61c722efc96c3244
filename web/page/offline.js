// Service worker for offline use: the files are cached at the first visit, all of one version, which
// web/build writes into the first line below. A new version waits until no tab uses the old one.

const VERSION = "@VERSION@";
const FILES = ["@FILES@"];
const NAME = `sterna-page-${VERSION}`;

addEventListener("install", (event) => {
  event.waitUntil(
    caches
      .open(NAME)
      .then((cache) => cache.addAll(FILES.map((file) => new Request(file, { cache: "reload" })))),
  );
});

addEventListener("activate", (event) => {
  const isOld = (name) => name.startsWith("sterna-page-") && name !== NAME;
  const clean = async () => {
    await Promise.all((await caches.keys()).filter(isOld).map((name) => caches.delete(name)));
    await clients.claim();
  };
  event.waitUntil(clean());
});

addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  const isOwn = url.href.startsWith(registration.scope);
  if (event.request.method !== "GET" || !isOwn) return;
  const kept = async () => {
    const cache = await caches.open(NAME);
    return (await cache.match(event.request, { ignoreSearch: true })) ?? fetch(event.request);
  };
  event.respondWith(kept());
});
