// SPDX-License-Identifier: MIT
//
// crowd.rs - sixteen threads that take items from a queue, and one that puts them there. Fault: each item wakes all threads.
//
// Usage: crowd [fixed] [SECONDS]. Repair: it wakes one.
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: usize = 16;
const ITEM_ROUNDS: u64 = 3000;
const PUT_ROUNDS: u64 = 2000;
const QUEUED_MOST: usize = 64;

struct Items {
    items: VecDeque<u64>,
    is_closed: bool,
}

struct Queue {
    items: Mutex<Items>,
    item_came: Condvar,
}

fn compute(rounds: u64) -> u64 {
    let mut sum = 14695981039346656037u64;
    for round in 0..rounds {
        sum = black_box((sum ^ round).wrapping_mul(1099511628211));
    }
    sum
}

impl Queue {
    fn take(&self) -> Option<u64> {
        let mut items = self.items.lock().unwrap();
        while items.items.is_empty() && !items.is_closed {
            items = self.item_came.wait(items).unwrap();
        }
        items.items.pop_front()
    }

    fn put(&self, item: u64, is_fixed: bool) -> usize {
        let mut items = self.items.lock().unwrap();
        items.items.push_back(item);
        let queued = items.items.len();
        drop(items);
        if is_fixed {
            self.item_came.notify_one();
        } else {
            self.item_came.notify_all();
        }
        queued
    }

    fn close(&self) {
        self.items.lock().unwrap().is_closed = true;
        self.item_came.notify_all();
    }
}

fn work(queue: &Queue) -> u64 {
    let mut ops = 0;
    while queue.take().is_some() {
        compute(ITEM_ROUNDS);
        ops += 1;
    }
    ops
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_fixed = words.iter().any(|word| word == "fixed");
    let seconds = words.iter().find_map(|word| word.parse::<f64>().ok()).unwrap_or(1.0);
    let queue = Arc::new(Queue {
        items: Mutex::new(Items { items: VecDeque::new(), is_closed: false }),
        item_came: Condvar::new(),
    });
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || work(&queue))
        })
        .collect();
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < seconds {
        let item = compute(PUT_ROUNDS);
        if queue.put(item, is_fixed) > QUEUED_MOST {
            thread::sleep(Duration::from_micros(50));
        }
    }
    queue.close();
    let ops: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    println!("ops {} seconds {:.6}", ops, began.elapsed().as_secs_f64());
}
