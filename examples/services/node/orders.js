// A Node service behind Reconsume, without a framework: node orders.js
const http = require("http");

const catalogue = new Set(["A-17"]);

http.createServer(async (request, response) => {
  const fail = (status, error) => {
    response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify({ error }));
  };
  let sku;
  try { // an exception that leaves an async function ends the process
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    sku = JSON.parse(Buffer.concat(chunks)).sku;
  } catch (error) {
    return fail(400, error.message);
  }
  if (typeof sku !== "string") fail(400, "it has no sku");
  else if (catalogue.has(sku)) response.writeHead(204).end();
  else fail(422, `${sku} is not in the catalogue`);
}).listen(8080, "127.0.0.1");
