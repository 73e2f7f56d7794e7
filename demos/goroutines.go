// SPDX-License-Identifier: MIT

// goroutines passes numbers through a channel and adds them up under a mutex, for demos/programs.py.
//
//	goroutines SECONDS
//
// It prints that it is ready, reads a line, and works for SECONDS. It then prints as JSON how many numbers went through
// the channel. It ends when its standard input ends, and uses neither rouse nor libc.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"
)

const sides = 4 // goroutines that send; as many receive

type sum struct {
	sync.Mutex
	items int
}

func send(into chan<- int, over <-chan struct{}, done *sync.WaitGroup) {
	defer done.Done()
	into <- 1
	for {
		select {
		case <-over:
			return
		case into <- 1:
		}
	}
}

func receive(from <-chan int, total *sum, done *sync.WaitGroup) {
	defer done.Done()
	for item := range from {
		total.Lock()
		total.items += item
		total.Unlock()
	}
}

func work(length time.Duration) {
	var senders, receivers sync.WaitGroup
	var total sum
	numbers, over := make(chan int), make(chan struct{})
	begin := time.Now()
	senders.Add(sides)
	receivers.Add(sides)
	for i := 0; i < sides; i++ {
		go send(numbers, over, &senders)
		go receive(numbers, &total, &receivers)
	}
	time.Sleep(length)
	close(over)
	senders.Wait()
	close(numbers)
	receivers.Wait()
	fmt.Printf("{\"operations\": %d, \"seconds\": %f}\n", total.items, time.Since(begin).Seconds())
}

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	input := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	input.ReadString('\n')
	work(time.Duration(seconds * float64(time.Second)))
	io.Copy(io.Discard, input)
}
