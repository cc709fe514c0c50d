package gateway

// SendGrace is how long a send may outlast the drain.
const SendGrace = sendGrace
