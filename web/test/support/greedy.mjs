// The greedy tokens of models, in whatever runs this: Node, Deno, a browser.

/**
 * @param load the package's
 * @param cases {file, load, prompts, maxTokens} each, where `file` is a path or an address
 * @returns of each {device, plan, texts, tokens}
 */
export async function greedy(load, cases, options = {}) {
  const said = [];
  for (const { file, load: how, prompts, maxTokens } of cases) {
    const model = await load(file, { ...options, ...how });
    const answers = prompts.map((prompt) =>
      model.generate(prompt, { temperature: 0, repeatPenalty: 1, maxTokens, ignoreEos: true }),
    );
    const results = await Promise.all(answers.map(({ result }) => result));
    const { device, plan } = model;
    said.push({
      device,
      plan,
      texts: results.map(({ text }) => text),
      tokens: results.map(({ tokens }) => tokens),
    });
    await model.dispose();
  }
  return said;
}
