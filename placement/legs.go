package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Legs picks the pairs of the legs of a striped volume that is spread over pairs: as many as there
// are that are ready and have room for their part, in sync if two are, and no more than there are
// legs. Of these the ones come first that Choose puts first, and the first leg is on the first of
// them. Each gets as many legs as the others, or one more. pairs has the pair of each leg; the
// choice is that of the first one, and its reason is of all.
//
// ErrNotReady and ErrNoRoom say that there are no two such pairs, and what each lacks.
func Legs(pairs []Pair, req Request, legs int) (_ Choice, on []string, err error) {
	req.SourcePair = "" // a copy is where its source is, and nothing is chosen for it
	var fit []Pair
	for most := min(len(pairs), legs); most >= 2; most-- {
		if fit = sized(pairs, req, legs, most); len(fit) >= most {
			fit = fit[:most]
			break
		}
	}
	if len(fit) < 2 {
		return Choice{}, nil, tooFew(pairs, req, legs)
	}
	var names []string
	for i := range fit {
		names = append(names, fit[i].Name)
	}
	home, why := fit[0].homeFor(req)
	for i := range legs {
		on = append(on, names[i%len(names)])
	}
	c := Choice{Pair: names[0], Home: home, Reason: fmt.Sprintf("the %d LUNs are spread over the pairs %s, which are ready and have room", legs, strings.Join(names, ", "))}
	if why != "" {
		c.Reason += "; of pair " + names[0] + ": " + why
	}
	return c, on, nil
}

// sized are the pairs that can take their part of the legs if these are spread over so many pairs,
// the best first. Where enough pairs are in sync, the others are left out.
func sized(pairs []Pair, req Request, legs, over int) (fit []Pair) {
	part := req
	part.Size = req.Size / int64(legs) * int64((legs+over-1)/over)
	synced := 0
	for _, p := range pairs {
		if p.Cluster == req.Cluster && refuses(p, part) == nil {
			fit = append(fit, p)
			if p.InSync {
				synced++
			}
		}
	}
	slices.SortFunc(fit, func(a, b Pair) int { return better(a, b, part) }) // those in sync are first
	if synced >= 2 {
		fit = fit[:synced]
	}
	return fit
}

// tooFew says what keeps a striped volume from being spread over two pairs.
func tooFew(pairs []Pair, req Request, legs int) error {
	part := req
	part.Size = req.Size / int64(legs) * int64((legs+1)/2)
	class, all := ErrNoRoom, 0
	var lacks []string
	for _, p := range slices.SortedFunc(slices.Values(pairs), func(a, b Pair) int { return cmp.Compare(a.Name, b.Name) }) {
		if p.Cluster != req.Cluster {
			continue
		}
		all++
		if err := refuses(p, part); err != nil {
			lacks = append(lacks, p.Name+": "+err.Error())
			if errors.Is(err, ErrNotReady) {
				class = ErrNotReady // it may be the next moment
			}
		}
	}
	if all < 2 {
		return fmt.Errorf("%w: the LUNs are to be spread over pairs, and cluster %s has %d of them: two are needed", ErrNoPair, req.Cluster, all)
	}
	return fmt.Errorf("%w: the LUNs are to be spread over pairs, and two are needed that can take %d bytes each: %s", class, part.Size, strings.Join(lacks, "; "))
}

// LegHome is the home of leg i of a striped volume. on has the pair of each leg, in their order;
// empty: all are on one pair. On each pair homes alternate, so neither node is the home of two legs
// more than the other one; and the first leg of one pair is at the other node than that of the pair
// before it, because pairs may share workers. volume is a or b, the home of the first leg; empty:
// it is not known, and a is the first.
func LegHome(volume string, on []string, i int) string {
	number := i
	if len(on) > 0 {
		var before []string // pairs
		number = 0
		for _, p := range on[:i] {
			if !slices.Contains(before, p) {
				before = append(before, p)
			}
			if p == on[i] {
				number++
			}
		}
		if at := slices.Index(before, on[i]); at >= 0 {
			number += at
		} else {
			number += len(before)
		}
	}
	if (number%2 == 1) != (volume == nodeB) {
		return nodeB
	}
	return nodeA
}
