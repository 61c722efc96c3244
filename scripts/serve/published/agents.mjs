// OpenAI's agents for Node against a running server: node agents.mjs http://127.0.0.1:8080
import assert from "node:assert/strict";
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel } from "@openai/agents";
import { run, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";

setTracingDisabled(true);
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const question = "What is two plus three?";
const answer = "Two plus three is five.";
const number = { type: "number" };
const properties = { a: number, b: number };
const parameters = { type: "object", properties, required: ["a", "b"], additionalProperties: false };
const calls = [];
const add = tool({
  name: "add",
  description: "Adds two numbers.",
  parameters,
  strict: false,
  execute: (input) => {
    calls.push(input);
    // The format of results that the demo model was trained on.
    return `{"sum": ${input.a + input.b}}`;
  },
});
const places = ["here", "there"];
const where = { type: "string", enum: places };
const schema = { type: "object", properties: { where }, required: ["where"], additionalProperties: false };

for (const Model of [OpenAIChatCompletionsModel, OpenAIResponsesModel]) {
  const common = { name: "one", model: new Model(client, "any"), modelSettings: { temperature: 0 } };
  const plain = new Agent(common);
  assert.equal((await run(plain, question)).finalOutput, answer);
  const stream = await run(plain, question, { stream: true });
  const pieces = [];
  for await (const piece of stream.toTextStream()) pieces.push(piece);
  assert.equal(pieces.join(""), answer);
  assert.ok(pieces.length > 1 && stream.finalOutput === answer);
  const said = await run(new Agent({ ...common, tools: [add] }), "What is 123 plus 456?");
  assert.equal(said.finalOutput, "123 plus 456 is 579.");
  assert.deepEqual(calls.splice(0), [{ a: 123, b: 456 }]);
  const outputType = { type: "json_schema", name: "place", strict: true, schema };
  const place = (await run(new Agent({ ...common, outputType }), question)).finalOutput;
  assert.ok(places.includes(place.where), JSON.stringify(place));
}
console.log("@openai/agents agrees with the server");
