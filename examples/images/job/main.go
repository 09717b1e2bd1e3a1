// Command job works for a moment and ends: it counts the primes below its
// argument. If a second argument names a file that is not there, the work fails
// half way and leaves that file, so that a second attempt succeeds.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"strconv"
)

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: job LIMIT [FILE]")
	}
	limit, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	if len(os.Args) > 2 {
		if _, err := os.Stat(os.Args[2]); errors.Is(err, fs.ErrNotExist) {
			log.Printf("Counted %d primes below %d", primes(limit/2), limit/2)
			if err := os.WriteFile(os.Args[2], []byte("tried once\n"), 0o644); err != nil {
				log.Fatal(err)
			}
			log.Fatal("The first attempt fails, as requested")
		}
	}
	fmt.Printf("There are %d primes below %d.\n", primes(limit), limit)
}

// primes counts the primes below limit.
func primes(limit int) int {
	composite := make([]bool, max(limit, 2))
	count := 0
	for n := 2; n < limit; n++ {
		if composite[n] {
			continue
		}
		count++
		for m := n * n; m < limit; m += n {
			composite[m] = true
		}
	}
	return count
}
