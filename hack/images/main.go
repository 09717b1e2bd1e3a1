// Command images writes the images of the examples and of the tests as docker
// archives, from the programs in examples/images and test/images:
//
//	go run ./hack/images [DIR]    DIR is bin/images
//
// nodectl imports them from its --image-dir. An image that is up to date is not built again.
package main

import (
	"fmt"
	"os"

	"github.com/nodectl/nodectl/hack/images/archive"
)

func main() {
	out := "bin/images"
	if len(os.Args) > 1 {
		out = os.Args[1]
	}
	all, err := archive.Build(".", out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	for _, a := range all {
		fmt.Printf("%s\t%s\n", a.File, a.Ref)
	}
}
