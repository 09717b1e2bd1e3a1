// Command crash runs for a second and fails, to show what becomes of a
// container that does.
package main

import (
	"log"
	"os"
	"time"
)

func main() {
	log.Print("All is well so far")
	time.Sleep(time.Second)
	log.Print("Something is wrong, giving up")
	os.Exit(1)
}
