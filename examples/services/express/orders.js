// An Express service behind Reconsume: npm install && npm start
const express = require("express");

const catalogue = new Set(["A-17"]);
const app = express();
app.use(express.json());

app.post("/events", (request, response) => {
  const { sku } = request.body ?? {};
  if (typeof sku !== "string") return response.status(400).json({ error: "it has no sku" });
  if (!catalogue.has(sku)) return response.status(422).json({ error: `${sku} is not in the catalogue` });
  response.sendStatus(204);
});

// Without this handler Express answers errors in HTML.
app.use((error, request, response, next) => {
  response.status(error.status ?? 500).json({ error: error.message });
});

app.listen(8080, "127.0.0.1");
