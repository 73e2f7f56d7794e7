// SPDX-License-Identifier: MIT

// A server of fasthttp for `rouse lab http --server`: it answers every request with one text.
// `go build` makes fasthttp-server; --server 'fasthttp=./fasthttp-server -port {port} -workers {workers}'.
package main

import (
	"flag"
	"fmt"
	"log"
	"runtime"

	"github.com/valyala/fasthttp"
)

func main() {
	port := flag.Int("port", 8080, "on 127.0.0.1")
	workers := flag.Int("workers", 1, "processors that Go uses at a time")
	flag.Parse()
	runtime.GOMAXPROCS(*workers)
	text := []byte("Hello, world!\n")
	answer := func(context *fasthttp.RequestCtx) {
		context.SetContentType("text/plain; charset=utf-8")
		context.SetBody(text)
	}
	log.Fatal(fasthttp.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), answer))
}
