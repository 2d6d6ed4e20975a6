package control

import (
	"slices"
	"strings"
)

// maxPage is how many objects one answer lists at most.
const maxPage = 1000

// page cuts a sorted list at a token. limit 0: maxPage.
func page[T any](all []*T, id func(*T) string, after string, limit uint32) (out []*T, next string) {
	if limit == 0 || limit > maxPage {
		limit = maxPage
	}
	i, _ := slices.BinarySearchFunc(all, after, func(t *T, s string) int { return strings.Compare(id(t), s) })
	if i < len(all) && id(all[i]) == after && after != "" {
		i++
	}
	all = all[i:]
	if len(all) > int(limit) {
		return all[:limit], id(all[limit-1])
	}
	return all, ""
}
