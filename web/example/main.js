// A page for a bundler: `npm install sterna vite`, then `npx vite`.
import { demoModel, load } from "sterna";

const model = await load(demoModel, { store: false });
document.getElementById("device").textContent = model.device.description;
for await (const piece of model.generate("Once upon a time", { maxTokens: 100 })) {
  document.getElementById("story").append(piece);
}
