package engine

import (
	"reflect"
	"testing"
)

// A struct that one goroutine changes has at most 20 fields: related fields form a struct of
// their own.
func TestOwnership_StructOfOneGoroutine_HasAtMost20Fields(t *testing.T) {
	t.Parallel()
	for _, v := range []any{loop{}, entry{}, worker{}} {
		if typ := reflect.TypeOf(v); typ.NumField() > 20 {
			t.Errorf("%s has %d fields", typ.Name(), typ.NumField())
		}
	}
}

// A worker can reach nothing that the sync loop changes.
func TestOwnership_Worker_DoesNotReachTheSyncLoop(t *testing.T) {
	t.Parallel()
	loops := map[reflect.Type]bool{}
	for _, v := range []any{loop{}, entry{}, Engine{}, startup{}, jobs{}} {
		loops[reflect.TypeOf(v)] = true
	}
	seen := map[reflect.Type]bool{}
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if loops[typ] {
			t.Errorf("%s is a %s", path, typ.Name())
		}
		if seen[typ] || typ.Kind() != reflect.Struct || typ.PkgPath() != reflect.TypeFor[worker]().PkgPath() {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			walk(path+"."+f.Name, f.Type)
		}
	}
	walk("worker", reflect.TypeFor[worker]())
}
