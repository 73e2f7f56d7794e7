// SPDX-License-Identifier: MIT

package main

import (
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var tests = map[string]test{
	"nop":        {threads: 1, samples: 11, prepare: teamOf(nop)},
	"yield":      {threads: 2, samples: 11, prepare: teamOf(yield)},
	"spawn":      {threads: 1, samples: 11, prepare: teamOf(spawn)},
	"spawn_many": {threads: 10_000, samples: 11, fixedOps: true, coldFirst: true, prepare: spawnMany},
	"ring":       {threads: 16, samples: 11, prepare: ring},
	"mutex":      {threads: 8, samples: 11, timed: true, prepare: mutex},
	"pingpong":   {threads: 2, samples: 11, prepare: pingpong},
	"sleepherd":  {threads: 100, samples: 3, timed: true, prepare: sleep},
	"memory":     {threads: 10_000, samples: 1, fixedOps: true, prepare: memory},
}

// A semaphore as Go programs write it: a channel with room for one unit.
type semaphore chan struct{}

func newSemaphore() semaphore { return make(chan struct{}, 1) }

func (s semaphore) post() { s <- struct{}{} }
func (s semaphore) wait() { <-s }

// team runs body on r.threads goroutines, which wait for their semaphore between samples.
type team struct {
	r        *run
	starts   []semaphore
	finished sync.WaitGroup
	ops      uint64
	stop     bool
	body     func(r *run, index int, ops uint64)
}

func newTeam(r *run, members int, body func(r *run, index int, ops uint64)) *team {
	t := &team{r: r, body: body, starts: make([]semaphore, members)}
	for i := 1; i < members; i++ {
		t.starts[i] = newSemaphore()
		go t.member(i)
	}
	return t
}

func (t *team) member(index int) {
	for {
		t.starts[index].wait()
		if t.stop {
			return
		}
		t.body(t.r, index, t.ops)
		t.finished.Done()
	}
}

func (t *team) round(ops uint64) {
	t.ops = ops
	t.finished.Add(len(t.starts) - 1)
	t.r.start()
	for _, start := range t.starts[1:] {
		start.post()
	}
	t.body(t.r, 0, ops)
	t.finished.Wait()
	t.r.stop()
}

func (t *team) sample(ops uint64) {
	members := uint64(len(t.starts))
	each := (ops + members - 1) / members
	t.round(each)
	t.r.sampleOps = each * members
}

func (t *team) end() {
	t.stop = true
	for _, start := range t.starts[1:] {
		start.post()
	}
}

func teamOf(body func(r *run, index int, ops uint64)) func(r *run) (func(uint64), func()) {
	return func(r *run) (func(uint64), func()) {
		t := newTeam(r, r.threads, body)
		return t.sample, t.end
	}
}

func nop(r *run, _ int, ops uint64) {
	for i := uint64(0); i < ops; i++ {
		r.countSome(i, ops)
	}
}

func yield(r *run, _ int, ops uint64) {
	for i := uint64(0); i < ops; i++ {
		r.countSome(i, ops)
		runtime.Gosched()
	}
}

func spawn(r *run, _ int, ops uint64) {
	var joined sync.WaitGroup
	for i := uint64(0); i < ops; i++ {
		joined.Add(1)
		go func(done uint64) {
			r.countSome(done, ops)
			joined.Done()
		}(i)
		joined.Wait()
	}
}

func spawnMany(r *run) (func(uint64), func()) {
	var joined sync.WaitGroup
	sample := func(ops uint64) {
		r.start()
		joined.Add(int(ops))
		for i := uint64(0); i < ops; i++ {
			go func(done uint64) {
				r.countSome(done, ops)
				joined.Done()
			}(i)
		}
		joined.Wait()
		r.stop()
		r.sampleOps = ops
	}
	end := func() {
		sorted := append([]float64{}, r.perOp...)
		sort.Float64s(sorted)
		r.figures["cold_ns_per_op"] = r.firstPerOp
		r.figures["warm_ns_per_op"] = median(sorted)
	}
	return sample, end
}

func ring(r *run) (func(uint64), func()) {
	n := r.threads
	members := make([]semaphore, n)
	for i := range members {
		members[i] = newSemaphore()
	}
	stop := false
	for i := 1; i < n; i++ {
		go func(index int) {
			hops := index
			for {
				members[index].wait()
				if stop {
					return
				}
				if hops%countHops == 0 {
					r.count(countHops)
				}
				hops++
				members[(index+1)%n].post()
			}
		}(i)
	}
	sample := func(ops uint64) {
		laps := (ops + uint64(n) - 1) / uint64(n)
		r.start()
		for i := uint64(0); i < laps; i++ {
			r.countSome(i, laps)
			members[1%n].post()
			members[0].wait()
		}
		r.stop()
		r.sampleOps = laps * uint64(n)
	}
	end := func() {
		stop = true
		for _, member := range members[1:] {
			member.post()
		}
	}
	return sample, end
}

const yieldEvery = 64

func mutex(r *run) (func(uint64), func()) {
	var lock sync.Mutex
	var shared, last uint64
	var stop atomic.Bool
	var deadline time.Time
	done := make([]uint64, r.threads*8) // one cache line each

	contend := func(r *run, index int, _ uint64) {
		mine := uint64(0)
		for !stop.Load() {
			lock.Lock()
			shared++
			if shared >= last {
				stop.Store(true)
			}
			lock.Unlock()
			mine++
			if mine%yieldEvery == 0 {
				runtime.Gosched()
			}
			if mine%countEvery == 0 {
				r.count(countEvery)
				if time.Now().After(deadline) {
					stop.Store(true)
				}
			}
		}
		done[index*8] += mine
	}
	t := newTeam(r, r.threads, contend)
	sample := func(ops uint64) {
		before := shared
		stop.Store(false)
		last = ^uint64(0)
		deadline = time.Now().Add(time.Duration(r.sampleNs))
		if ops > 0 {
			last = before + ops
			deadline = deadline.Add(time.Hour)
		}
		t.round(ops)
		r.sampleOps = shared - before
	}
	end := func() {
		t.end()
		most, least := uint64(0), ^uint64(0)
		for i := 0; i < r.threads; i++ {
			if done[i*8] > most {
				most = done[i*8]
			}
			if done[i*8] < least {
				least = done[i*8]
			}
		}
		r.figures["most_ops"] = float64(most)
		r.figures["least_ops"] = float64(least)
		r.figures["yield_every"] = yieldEvery
		if least > 0 {
			r.figures["fairness"] = float64(most) / float64(least)
		}
	}
	return sample, end
}

func pingpong(r *run) (func(uint64), func()) {
	pairs := r.threads / 2
	ping, pong := make([]semaphore, pairs), make([]semaphore, pairs)
	stop := false
	for i := range ping {
		ping[i], pong[i] = newSemaphore(), newSemaphore()
		go func(index int) {
			for {
				ping[index].wait()
				if stop {
					return
				}
				pong[index].post()
			}
		}(i)
	}
	play := func(r *run, index int, ops uint64) {
		for i := uint64(0); i < ops; i++ {
			r.countSome(i, ops)
			ping[index].post()
			pong[index].wait()
		}
	}
	t := newTeam(r, pairs, play)
	end := func() {
		stop = true
		for _, s := range ping {
			s.post()
		}
		t.end()
	}
	return t.sample, end
}

func sleep(r *run) (func(uint64), func()) {
	late := make([][]float64, r.threads)
	rounds := uint64(r.sampleNs / int64(r.sleep))
	if r.ops > 0 {
		rounds = (r.ops + uint64(r.threads) - 1) / uint64(r.threads)
	}
	if rounds == 0 {
		rounds = 1
	}
	for i := range late {
		late[i] = make([]float64, 0, rounds*uint64(r.samples))
	}
	nap := func(r *run, index int, rounds uint64) {
		for i := uint64(0); i < rounds; i++ {
			due := time.Now().Add(r.sleep)
			time.Sleep(r.sleep)
			late[index] = append(late[index], float64(time.Since(due)))
			r.countSome(i, rounds)
		}
	}
	t := newTeam(r, r.threads, nap)
	sample := func(uint64) {
		t.round(rounds)
		r.sampleOps = rounds * uint64(r.threads)
	}
	end := func() {
		t.end()
		all := []float64{}
		for _, some := range late {
			all = append(all, some...)
		}
		sort.Float64s(all)
		n := len(all)
		r.figures["wakeups_per_s"] = float64(r.totalOps) * 1e9 / float64(r.total.wallNs)
		r.figures["ideal_per_s"] = float64(r.threads) * 1e9 / float64(r.sleep)
		r.figures["late_p50_us"] = all[n/2] / 1e3
		r.figures["late_p99_us"] = all[n*99/100] / 1e3
		r.figures["late_max_us"] = all[n-1] / 1e3
		r.figures["cpu_us_per_wakeup"] = float64(r.total.cpuNs) / 1e3 / float64(r.totalOps)
	}
	return sample, end
}

func residentPages() float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	return pages
}

func memory(r *run) (func(uint64), func()) {
	parked := make([]semaphore, r.threads)
	for i := range parked {
		parked[i] = newSemaphore()
	}
	var before, after float64
	sample := func(ops uint64) {
		ready := newSemaphore()
		before = residentPages()
		r.start()
		for _, s := range parked {
			go func(s semaphore) {
				ready.post()
				s.wait()
			}(s)
			ready.wait()
		}
		r.stop()
		after = residentPages()
		for _, s := range parked {
			s.post()
		}
		r.sampleOps = ops
	}
	end := func() {
		bytes := (after - before) * float64(os.Getpagesize())
		r.figures["rss_bytes_per_thread"] = bytes / float64(r.threads)
	}
	return sample, end
}
