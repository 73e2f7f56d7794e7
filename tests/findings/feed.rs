// SPDX-License-Identifier: MIT
//
// feed.rs - prices behind a std::sync::RwLock, which four threads read, one changes, and one sends to a portal. Fault: it
// sends with the lock for reading. A writer that waits for it stops all other readers.
//
// Repair: it sends a copy. Usage: feed [fixed] [SECONDS].
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::RwLock;
use std::thread;
use std::time::{Duration, Instant};

const READERS: usize = 4;
const PORTAL: Duration = Duration::from_millis(12);
const REQUEST: Duration = Duration::from_micros(200);
const CHANGE: Duration = Duration::from_millis(3);
const PAUSE: Duration = Duration::from_millis(8);

struct Shop {
    prices: RwLock<Vec<u64>>,
    is_closed: AtomicBool,
    ops: AtomicU64,
    feeds: AtomicU64,
}

impl Shop {
    fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn price_of(&self, article: usize) -> u64 {
        self.prices.read().unwrap()[article]
    }

    #[inline(never)]
    fn set_price(&self, article: usize, price: u64) {
        self.prices.write().unwrap()[article] = price;
    }

    fn serve(&self) {
        let mut sum = 0u64;
        while self.is_open() {
            thread::sleep(REQUEST);
            sum += self.price_of(sum as usize % 100);
            self.ops.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn change(&self) {
        let mut number = 0;
        while self.is_open() {
            thread::sleep(CHANGE);
            self.set_price(number % 100, number as u64);
            number += 1;
        }
    }

    #[inline(never)]
    fn send_feed(&self, is_fixed: bool) {
        if is_fixed {
            let copy = self.prices.read().unwrap().clone();
            send(&copy);
        } else {
            send(&self.prices.read().unwrap());
        }
        self.feeds.fetch_add(1, Ordering::Relaxed);
    }
}

fn send(prices: &[u64]) {
    thread::sleep(PORTAL);
    assert!(prices.len() == 100);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_fixed = words.iter().any(|word| word == "fixed");
    let seconds = words.iter().find_map(|word| word.parse::<f64>().ok()).unwrap_or(1.0);
    let shop = Shop {
        prices: RwLock::new(vec![0; 100]),
        is_closed: AtomicBool::new(false),
        ops: AtomicU64::new(0),
        feeds: AtomicU64::new(0),
    };
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| shop.serve());
        }
        scope.spawn(|| shop.change());
        scope.spawn(|| {
            while shop.is_open() {
                shop.send_feed(is_fixed);
                thread::sleep(PAUSE);
            }
        });
        thread::sleep(Duration::from_secs_f64(seconds));
        shop.is_closed.store(true, Ordering::Relaxed);
    });
    println!(
        "ops {} seconds {:.6}",
        shop.ops.load(Ordering::Relaxed),
        began.elapsed().as_secs_f64()
    );
}
