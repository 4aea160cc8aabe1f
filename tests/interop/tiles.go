// Checks a folder of tiles with Go's own packages: the checkpoint's signature, every entry's inclusion, and that
// each earlier tree is the beginning of this one. Usage: tiles FOLDER VKEY STEP; each STEP-th index is checked.
package main

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type folder string

func (f folder) Height() int { return 8 }

func (f folder) SaveTiles(tiles []tlog.Tile, data [][]byte) {}

func (f folder) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var all [][]byte
	for _, tile := range tiles {
		// Go's own database has the height in the path, tlog-tiles has not.
		path := "tile/" + strings.TrimPrefix(tile.Path(), "tile/8/")
		data, err := os.ReadFile(filepath.Join(string(f), path))
		if err != nil {
			return nil, err
		}
		all = append(all, data)
	}
	return all, nil
}

func (f folder) entry(size, index int64) ([]byte, error) {
	tile := tlog.Tile{H: 8, L: 0, N: index / 256, W: 256}
	if size/256 == tile.N {
		tile.W = int(size % 256)
	}
	path := "tile/entries/" + strings.TrimPrefix(tile.Path(), "tile/8/0/")
	data, err := os.ReadFile(filepath.Join(string(f), path))
	if err != nil {
		return nil, err
	}
	for skip := index % 256; ; skip-- {
		length := int(binary.BigEndian.Uint16(data))
		if skip == 0 {
			return data[2 : 2+length], nil
		}
		data = data[2+length:]
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	f := folder(os.Args[1])
	signed, err := os.ReadFile(filepath.Join(os.Args[1], "checkpoint"))
	must(err)
	verifier, err := note.NewVerifier(os.Args[2])
	must(err)
	opened, err := note.Open(signed, note.VerifierList(verifier))
	must(err)
	step, err := strconv.ParseInt(os.Args[3], 10, 64)
	must(err)

	lines := strings.Split(opened.Text, "\n")
	if lines[0] != verifier.Name() {
		log.Fatalf("expected origin %s, got %s", verifier.Name(), lines[0])
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	must(err)
	root, err := base64.StdEncoding.DecodeString(lines[2])
	must(err)
	tree := tlog.Tree{N: size}
	copy(tree.Hash[:], root)
	reader := tlog.TileHashReader(tree, f)

	checked := 0
	for index := int64(0); index < size; index += step {
		entry, err := f.entry(size, index)
		must(err)
		record, err := tlog.ProveRecord(size, index, reader)
		must(err)
		must(tlog.CheckRecord(record, size, tree.Hash, index, tlog.RecordHash(entry)))
		then, err := tlog.TreeHash(index+1, reader)
		must(err)
		grown, err := tlog.ProveTree(size, index+1, reader)
		must(err)
		must(tlog.CheckTree(grown, size, tree.Hash, index+1, then))
		checked++
	}
	fmt.Println(size, checked, len(opened.Sigs), len(opened.UnverifiedSigs))
}
