// SPDX-License-Identifier: MIT
//
// ledger.rs - accounts behind a std::sync::Mutex. Fault: an entry is written to a slow archive while the mutex is held.
//
// Repair: it is written first. Usage: ledger [fixed] [SECONDS].
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const THREADS: usize = 6;
const ARCHIVE: Duration = Duration::from_micros(500);

struct Ledger {
    entries: Mutex<u64>,
    is_fixed: bool,
}

impl Ledger {
    #[inline(never)]
    fn write_to_archive(&self, is_locked: bool) {
        if is_locked != self.is_fixed {
            thread::sleep(ARCHIVE);
        }
    }

    #[inline(never)]
    fn post_entry(&self) {
        self.write_to_archive(false);
        let mut entries = self.entries.lock().unwrap();
        self.write_to_archive(true);
        *entries += 1;
    }
}

fn main() {
    let mut seconds = 1.0;
    let mut is_fixed = false;
    for word in std::env::args().skip(1) {
        match word.parse() {
            Ok(number) => seconds = number,
            Err(_) => is_fixed = word == "fixed",
        }
    }
    let ledger = Ledger { entries: Mutex::new(0), is_fixed };
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(seconds);
    thread::scope(|all| {
        for _ in 0..THREADS {
            all.spawn(|| {
                while Instant::now() < until {
                    ledger.post_entry();
                }
            });
        }
    });
    let ops = ledger.entries.lock().unwrap();
    println!("ops {} seconds {:.6}", *ops, began.elapsed().as_secs_f64());
}
