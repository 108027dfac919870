// Sends the requests of a file with Node's two clients: fetch, and the module http for what fetch does not do.
import { createHash } from "node:crypto";
import { createReadStream, readFileSync } from "node:fs";
import { Agent, request } from "node:http";

const [base, file] = process.argv.slice(2);
const agent = new Agent({ keepAlive: true });

const line = (status, body) => `${status} ${createHash("sha256").update(body).digest("hex")}`;

async function viaFetch(method, target, body) {
  const answer = await fetch(base + target, { method, body: body === "-" ? undefined : readFileSync(body) });
  return line(answer.status, Buffer.from(await answer.arrayBuffer()));
}

function viaHttp(method, target, body, how) {
  return new Promise((resolve, reject) => {
    const headers = how === "expect" ? { Expect: "100-continue" } : {};
    const sent = request(base + target, { method, agent, headers }, (answer) => {
      const pieces = [];
      answer.on("data", (piece) => pieces.push(piece));
      answer.on("end", () => resolve(line(answer.statusCode, Buffer.concat(pieces))));
    });
    sent.on("error", reject);
    if (how === "expect") {
      sent.on("continue", () => createReadStream(body).pipe(sent));
    } else {
      createReadStream(body).pipe(sent); // in chunks
    }
  });
}

const together = [];
for (const text of readFileSync(file, "utf8").trim().split("\n")) {
  const [method, target, body, how] = text.split(" ");
  if (how === "together") {
    together.push(viaFetch(method, target, body));
  } else if (how === "chunked" || how === "expect") {
    console.log(await viaHttp(method, target, body, how));
  } else {
    console.log(await viaFetch(method, target, body));
  }
}
for (const answer of await Promise.all(together)) {
  console.log(answer);
}
agent.destroy();
