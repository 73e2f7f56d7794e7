// SPDX-License-Identifier: MIT

// bench-go measures the cases of rouse-bench on goroutines, with the same options and report.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	sampleNs   = 10_000_000
	countEvery = 256
	countHops  = 16
	clockCPU   = 2 // CLOCK_PROCESS_CPUTIME_ID
)

type reading struct {
	wallNs, cpuNs          int64
	voluntary, involuntary int64
}

// tally keeps the operations of one processor, on a cache line of its own.
type tally struct {
	ops atomic.Uint64
	_   [56]byte
}

type run struct {
	name     string
	threads  int
	ops      uint64
	seconds  float64
	samples  int
	sleep    time.Duration
	sampleNs int64

	started, taken reading
	sampleOps      uint64
	perOp          []float64
	firstPerOp     float64
	totalOps       uint64
	total          reading
	tallies        [1024]tally
	figures        map[string]float64
}

// A test is one case. prepare allocates what the case needs, and returns one function that takes a sample of
// n operations and one that ends the case, which may add figures.
type test struct {
	threads   int
	samples   int
	timed     bool // a sample lasts run.sampleNs
	fixedOps  bool // operations are threads
	coldFirst bool
	prepare   func(r *run) (sample func(ops uint64), end func())
}

func readNow() reading {
	var usage syscall.Rusage
	var cpu syscall.Timespec
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockCPU, uintptr(unsafe.Pointer(&cpu)), 0)
	return reading{
		wallNs: int64(time.Since(origin)), cpuNs: cpu.Nano(),
		voluntary: usage.Nvcsw, involuntary: usage.Nivcsw,
	}
}

var origin = time.Now()

func (r *run) start() { r.started = readNow() }

func (r *run) stop() {
	now := readNow()
	r.taken = reading{
		now.wallNs - r.started.wallNs, now.cpuNs - r.started.cpuNs,
		now.voluntary - r.started.voluntary, now.involuntary - r.started.involuntary,
	}
}

// count records that ops operations ran on this processor.
func (r *run) count(ops uint64) {
	var cpu uint32
	syscall.RawSyscall(sysGetcpu, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	r.tallies[cpu%uint32(len(r.tallies))].ops.Add(ops)
}

func (r *run) countSome(done, total uint64) {
	if done%countEvery == 0 {
		r.count(min64(total-done, countEvery))
	}
}

func min64(a, b uint64) uint64 {
	if a < b {
		return a
	}
	return b
}

func (r *run) calibrate(sample func(uint64)) uint64 {
	ops := uint64(r.threads)
	for {
		sample(ops)
		if r.taken.wallNs >= sampleNs {
			return ops
		}
		if r.taken.wallNs < sampleNs/10 {
			ops *= 10
		} else {
			ops = uint64(1.2*sampleNs*float64(ops)/float64(r.taken.wallNs)) + 1
		}
	}
}

func (r *run) measure(t test) {
	sample, end := t.prepare(r)
	ops := r.ops
	if t.fixedOps {
		ops = uint64(r.threads)
	} else if ops == 0 && !t.timed {
		ops = r.calibrate(sample)
	}
	began := time.Now()
	if t.coldFirst {
		sample(ops)
		r.firstPerOp = float64(r.taken.wallNs) / float64(r.sampleOps)
	}
	for i := range r.tallies {
		r.tallies[i].ops.Store(0)
	}
	for len(r.perOp) < r.samples {
		sample(ops)
		r.perOp = append(r.perOp, float64(r.taken.wallNs)/float64(r.sampleOps))
		r.totalOps += r.sampleOps
		r.total.wallNs += r.taken.wallNs
		r.total.cpuNs += r.taken.cpuNs
		r.total.voluntary += r.taken.voluntary
		r.total.involuntary += r.taken.involuntary
		if time.Since(began).Seconds() >= r.seconds {
			break
		}
	}
	end()
}

func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

func (r *run) report() {
	perWorker := []uint64{}
	for i := 0; i < runtime.NumCPU(); i++ {
		perWorker = append(perWorker, r.tallies[i].ops.Load())
	}
	sort.Float64s(r.perOp)
	object := map[string]any{
		"case": r.name, "threads": "go", "workers": runtime.GOMAXPROCS(0), "T": r.threads,
		"ops": r.sampleOps, "samples": len(r.perOp), "ns_per_op": median(r.perOp),
		"ns_min": r.perOp[0], "ns_max": r.perOp[len(r.perOp)-1],
		"cpu_ns_per_op": float64(r.total.cpuNs) / float64(r.totalOps), "total_ops": r.totalOps,
		"voluntary_switches": r.total.voluntary, "involuntary_switches": r.total.involuntary,
		"ops_per_worker": perWorker, "pinned": 0, "obs": "off", "errors": 0,
	}
	for name, value := range r.figures {
		object[name] = value
	}
	text, err := json.Marshal(object)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-go:", err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "bench-go: "+format+"\n", arguments...)
	os.Exit(2)
}

func main() {
	if len(os.Args) < 2 {
		fail("which case")
	}
	t, known := tests[os.Args[1]]
	if !known {
		fail("there is no case '%s'", os.Args[1])
	}
	r := &run{name: os.Args[1], figures: map[string]float64{}}
	flags := flag.NewFlagSet("bench-go", flag.ExitOnError)
	workers := flags.Int("workers", runtime.NumCPU(), "GOMAXPROCS")
	flags.IntVar(&r.threads, "T", t.threads, "goroutines that take part")
	flags.Uint64Var(&r.ops, "n", 0, "operations a sample")
	flags.Float64Var(&r.seconds, "seconds", 2, "begin no sample after so many seconds")
	flags.IntVar(&r.samples, "samples", t.samples, "samples")
	sleepUs := flags.Int("sleep-us", 10_000, "sleep: how long")
	flags.Bool("json", true, "always")
	flags.Parse(os.Args[2:])
	if flags.NArg() > 0 || *workers < 1 || r.threads < 1 || r.samples < 1 || *sleepUs < 1 {
		fail("wrong arguments")
	}
	if t.fixedOps && r.ops > 0 {
		r.threads = int(r.ops)
	}
	runtime.GOMAXPROCS(*workers)
	r.sleep = time.Duration(*sleepUs) * time.Microsecond
	r.sampleNs = int64(r.seconds * 1e9 / float64(r.samples))
	if r.sampleNs < sampleNs {
		r.sampleNs = sampleNs
	}
	var all sync.WaitGroup
	all.Add(1)
	go func() {
		defer all.Done()
		r.measure(t)
	}()
	all.Wait()
	r.report()
}
