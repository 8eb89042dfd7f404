// BullMQ, with the commands of drive.py and the handlers of work.py: node bullmq.mjs COMMAND [NUMBER ...]

import { openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";

const { Queue, Worker } = createRequire(`${process.env.COMPARE_MODULES}/`)("bullmq");

const LONGEST_DELAY_MS = 2000;
const HOLD_MS = 100;
const CHUNK = 1000;

const connection = { path: process.env.COMPARE_REDIS, maxRetriesPerRequest: null };
const options = { removeOnComplete: true, attempts: 3 };
const now = () => performance.timeOrigin + performance.now();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const delayed = (due) => (due === null ? options : { ...options, delay: Math.max(Math.ceil(due - Date.now()), 0) });
const soon = () => now() + Math.random() * LONGEST_DELAY_MS;

async function run({ name, data: { number, due } }) {
  const write = (line) => writeSync(runs, `${line}\n`);
  if (name === "noop") write(".");
  if (name === "record") write(`${due} ${now()}`);
  if (name === "hold") {
    write(`start ${number} ${now()}`);
    await sleep(HOLD_MS);
    write(`end ${number} ${now()}`);
  }
}

const send = (queue, name, number, due) => queue.add(name, { number, due }, delayed(due));

async function sendMany(queue, count, due) {
  for (let start = 0; start < count; start += CHUNK) {
    const jobs = Array.from({ length: Math.min(CHUNK, count - start) }, (_, number) => ({
      name: "noop",
      data: { number, due },
      opts: delayed(due),
    }));
    await queue.addBulk(jobs);
  }
}

async function timed(work) {
  const started = performance.now();
  await work();
  console.log(JSON.stringify({ seconds: (performance.now() - started) / 1000 }));
}

const commands = {
  async prepare() {},
  async one(queue, count) {
    for (let number = 0; number < 20; number++) await send(queue, "noop", number, null);
    await timed(async () => {
      for (let number = 0; number < count; number++) await send(queue, "noop", number, null);
    });
  },
  async many(queue, count, afterS) {
    await queue.waitUntilReady();
    await timed(() => sendMany(queue, count, afterS ? now() + afterS * 1000 : null));
  },
  async pace(queue, seconds, perS) {
    const started = performance.now();
    for (let number = 0; number < seconds * perS; number++) {
      await sleep(Math.max(started + (number * 1000) / perS - performance.now(), 0));
      await send(queue, "record", number, soon());
    }
  },
  async holds(queue, count) {
    for (let number = 0; number < count; number++) await send(queue, "hold", number, number % 2 ? soon() : null);
  },
};

const [command, ...numbers] = process.argv.slice(2);
const runs = openSync(process.env.COMPARE_RUNS, "a");
if (command === "work") {
  new Worker("compare", run, { connection, concurrency: 50 });
} else {
  const queue = new Queue("compare", { connection });
  await commands[command](queue, ...numbers.map(Number));
  await queue.close();
}
