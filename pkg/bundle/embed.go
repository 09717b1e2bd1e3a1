//go:build bundle

package bundle

import _ "embed"

// carried is the archive hack/bundle/build makes. A string, because its pages
// stay in the file until they are read.
//
//go:embed bundle.tar.zst
var carried string
