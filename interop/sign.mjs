// Prints requests as JSON lines, signed by the senders' own packages:
// {sender, scheme, secret, name, headers, body, genuine}. secret is the one
// that the sender and the gateway share; what is not genuine must be refused.
import { sign as octokitSign, verify as octokitVerify } from "@octokit/webhooks-methods";
import { Webhook as StandardWebhook } from "standardwebhooks";
import Stripe from "stripe";
import { Webhook as SvixWebhook } from "svix";

const bodies = {
  "object": `{"text":"hello"}`,
  "unicode": `{"text":"Grüße, 日本語 👩‍🚀 e\u0301 \u2028","name":"\\u00e9\\ud83d\\ude00"}`,
  "odd spacing": `\r\n\t{ "text" :\t"a  b" , "list":[ 1 ,2.50,1e3 ]\n}  `,
  "trailing newline": `{"text":"line"}\n`,
  "numbers": `{"text":"n","id":12345678901234567890,"price":1.10}`,
  "dots and commas": `{"text":"1700000000.v1=00,v0=11 v1,AA=="}`,
  "empty object": `{}`,
  "empty text": `""`,
  "null": `null`,
  "zero": `0`,
};

const encoded = (text) => "whsec_" + Buffer.from(text).toString("base64");

// sign and verify are the package's own. verify throws or returns false, and
// shows that the headers have the names that the package looks for.
const senders = [
  {
    sender: "octokit",
    scheme: "github",
    secret: "It's a Secret to Everybody",
    otherSecret: "It's a secret to everybody",
    sign: async (secret, id, date, body) => ({
      "X-GitHub-Delivery": id,
      "X-Hub-Signature-256": await octokitSign(secret, body),
    }),
    verify: (secret, headers, body) => octokitVerify(secret, body, headers["X-Hub-Signature-256"]),
  },
  {
    sender: "stripe",
    scheme: "stripe",
    timed: true,
    secret: encoded("the text itself is the key"),
    otherSecret: encoded("the text itself is no key"),
    sign: async (secret, id, date, body) => ({
      "Stripe-Signature": Stripe.webhooks.generateTestHeaderString({ payload: body, secret, timestamp: seconds(date) }),
    }),
    verify: (secret, headers, body) => Stripe.webhooks.signature.verifyHeader(body, headers["Stripe-Signature"], secret),
  },
  standard("standardwebhooks", StandardWebhook, "webhook"),
  standard("svix", SvixWebhook, "svix"),
];

function standard(sender, Webhook, prefix) {
  return {
    sender,
    scheme: "standard",
    timed: true,
    secret: encoded(`the key of ${sender}, 32 bytes`),
    otherSecret: encoded(`another key of ${sender}`),
    sign: async (secret, id, date, body) => ({
      [`${prefix}-id`]: id,
      [`${prefix}-timestamp`]: String(seconds(date)),
      [`${prefix}-signature`]: new Webhook(secret).sign(id, date, body),
    }),
    verify: (secret, headers, body) => new Webhook(secret).verify(body, headers),
  };
}

function seconds(date) {
  return Math.floor(date.getTime() / 1000);
}

const now = new Date();
const minutesFromNow = (n) => new Date(now.getTime() + n * 60_000);

for (const s of senders) {
  const print = async (name, genuine, secret, date, body) => {
    const headers = await s.sign(secret, `msg_${name.replaceAll(" ", "_")}`, date, body);
    if (genuine && (await s.verify(secret, headers, body)) === false) {
      throw new Error(`${s.sender} does not verify its own signature of: ${name}`);
    }
    console.log(JSON.stringify({ sender: s.sender, scheme: s.scheme, secret: s.secret, name, headers, body, genuine }));
  };
  for (const [name, body] of Object.entries(bodies)) {
    await print(name, true, s.secret, now, body);
  }
  await print("wrong secret", false, s.otherSecret, now, bodies.object);
  if (s.timed) {
    await print("stale", false, s.secret, minutesFromNow(-6), bodies.object);
    await print("from the future", false, s.secret, minutesFromNow(2), bodies.object);
  }
}
