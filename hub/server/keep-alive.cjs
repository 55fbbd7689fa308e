// Loaded into the proxy before its own program: connections to Unix sockets stay open for two seconds more. Run.
//
// configurable-http-proxy keeps its connections to TCP ports, but opens one for each request to a Unix socket. Node then
// reports EPIPE where the other side has answered and hung up before an empty last write (nodejs/node#40553), and the
// answer of a request with a body becomes a 503: 55 of 1,600 on two busy cores.
const http = require("node:http");

const agent = new http.Agent({ keepAlive: true, timeout: 2000 }); // of a connection without a request: requests may take longer
const request = http.request;

http.request = (options, ...more) => {
  if (options.socketPath && options.agent === false && options.headers?.connection === "close") {
    options = { ...options, agent, headers: { ...options.headers, connection: "keep-alive" } };
  }
  return request(options, ...more);
};
