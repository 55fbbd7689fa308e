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
const net = require("node:net");

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

// One host with IPv6 has 2^64 addresses: the first half of them, which is its network's.
function network(address) {
  if (!net.isIPv6(address) || address.startsWith("::ffff:")) return address;
  const [head, tail] = address.split("::").map((part) => part.split(":").filter(Boolean));
  const zeros = tail ? Array(8 - head.length - tail.length).fill("0") : [];
  return [...head, ...zeros, ...(tail ?? [])].slice(0, 4).join(":");
}

function counted(socket) {
  if (!socket.remoteAddress) return; // a Unix socket: the hub itself
  const address = network(socket.remoteAddress);
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

// A learner's server answers what its learner wants. With this header its page would make a script of theirs answer for the whole
// site, the log-in page included, in the browser of whoever has once opened it.
const set = http.ServerResponse.prototype.setHeader;
http.ServerResponse.prototype.setHeader = function (name, value) {
  return name.toLowerCase() === "service-worker-allowed" ? this : set.call(this, name, value);
};
