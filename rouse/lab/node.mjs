// SPDX-License-Identifier: MIT
// node.mjs PORT WORKERS - the server of Node.js in `rouse lab http`: so many processes, which answer every request with
// one text.
import cluster from "node:cluster";
import http from "node:http";

const [port, workers] = process.argv.slice(2).map(Number);
if (!(port > 0 && workers > 0)) {
  console.error("usage: node.mjs PORT WORKERS");
  process.exit(2);
}
const text = "Hello, world!\n";
const head = { "Content-Type": "text/plain; charset=utf-8", "Content-Length": text.length };

if (cluster.isPrimary && workers > 1) {
  for (let i = 0; i < workers; i++) cluster.fork();
} else {
  const server = http.createServer((request, response) => response.writeHead(200, head).end(text));
  server.keepAliveTimeout = 3600000;
  server.listen({ port, host: "127.0.0.1", backlog: 16384 });
}
