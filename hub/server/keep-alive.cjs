// Loaded into the proxy before its own program: which of its connections to servers stay open.
//
// Those to Unix sockets, for two seconds more. configurable-http-proxy keeps its connections to TCP ports, but opens one for each
// request to a Unix socket. Node then reports EPIPE where the other side has answered and hung up before an empty last write
// (nodejs/node#40553), and the answer of a request with a body becomes a 503: 55 of 1,600 on two busy cores.
//
// And none after DELETE or OPTIONS. Of such a request whose body comes in chunks the proxy sends the body, but says that there is
// none: on a connection that stays open that is one request more, anybody's, and its answer goes to whoever asks next.
const http = require("node:http");
const https = require("node:https");

const agent = new http.Agent({ keepAlive: true, timeout: 2000 }); // of a connection without a request: requests may take longer

function asked(options) {
  if (["DELETE", "OPTIONS"].includes(options.method)) {
    return { ...options, agent: false, headers: { ...options.headers, connection: "close" } };
  }
  if (options.socketPath && options.agent === false && options.headers?.connection === "close") {
    return { ...options, agent, headers: { ...options.headers, connection: "keep-alive" } };
  }
  return options;
}

for (const library of [http, https]) {
  const request = library.request;
  library.request = (options, ...more) => request(asked(options), ...more);
}
