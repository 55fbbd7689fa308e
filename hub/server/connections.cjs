// Loaded into the proxy before its own program: how many connections an address has, and which of those to servers stay open.
//
// Of connections to servers, those to Unix sockets, for two seconds more. configurable-http-proxy keeps its connections to TCP ports, but opens one for each
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

// A request that is sent by halves holds three descriptors, of 65536 here and as many in the hub, until Node ends it after five
// minutes.
const most = Number(process.env.RINGTREE_HUB_CONNECTIONS || 2000);
const open = new Map(); // from each address

function counted(socket) {
  const address = socket.remoteAddress;
  if (!address) return; // a Unix socket: the hub itself
  const now = (open.get(address) || 0) + 1;
  if (now > most) return socket.destroy();
  open.set(address, now);
  socket.once("close", () => {
    const left = open.get(address) - 1;
    left ? open.set(address, left) : open.delete(address);
  });
}

for (const library of [http, https]) {
  const create = library.createServer;
  library.createServer = (...given) => create(...given).on("connection", counted);
}
