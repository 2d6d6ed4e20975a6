package node

import (
	"slices"
	"testing"
	"time"
)

func newReaders(t *testing.T) *readers {
	var tasks tasks
	t.Cleanup(tasks.Wait)
	return &readers{tasks: &tasks}
}

func await[T any](t *testing.T, what string, c <-chan T) (x T) {
	t.Helper()
	select {
	case x = <-c:
	case <-time.After(time.Minute):
		t.Fatal("not within a minute: ", what)
	}
	return x
}

// A volume with members has as many disks.
func TestReadersOfSeveralDisks(t *testing.T) {
	r := newReaders(t)
	r.disks = 3
	const n = 3*readersMax + 1
	began, let := make(chan int, n), make(chan struct{}, n)
	for i := range n {
		r.read(readingMax/readersMax, func() { began <- i; <-let })
	}
	for range 3 * readersMax {
		await(t, "a read begins", began)
	}
	if len(began) > 0 || !r.saturated() {
		t.Error("more than three disks take")
	}
	for range n {
		let <- struct{}{}
	}
	r.tasks.Wait()
}

// As many reads as the disk likes are under way, the rest waits in order, and who hands them over
// never does.
func TestReadersAreBounded(t *testing.T) {
	r := newReaders(t)
	const n = readersMax + 5000
	began, let := make(chan int, n), make(chan struct{}, n)
	for i := range n {
		r.read(4096, func() { began <- i; <-let })
	}
	var first []int
	for range readersMax {
		first = append(first, await(t, "a read begins", began))
	}
	slices.Sort(first)
	if first[0] != 0 || first[readersMax-1] != readersMax-1 {
		t.Errorf("those that begin first: %v", first)
	}
	if !r.saturated() {
		t.Error("not saturated")
	}
	for i := readersMax; i < n; i++ {
		if len(began) > 0 {
			t.Fatalf("more than %d at once", readersMax)
		}
		let <- struct{}{}
		if got := await(t, "the next read", began); got != i {
			t.Fatalf("%d begins when it is the turn of %d", got, i)
		}
	}
	if r.saturated() {
		t.Error("saturated, and nothing waits")
	}
	for range readersMax {
		let <- struct{}{}
	}
	r.tasks.Wait()
	if r.busy != 0 || r.bytes != 0 || r.next != 0 || len(r.queue) != 0 {
		t.Errorf("left: %d reads, %d bytes, %d of %d in the queue", r.busy, r.bytes, r.next, len(r.queue))
	}
}

// Long reads are fewer at once, but the longest gets through, and short ones fill the room that it
// leaves.
func TestReadersAreBoundedInBytes(t *testing.T) {
	r := newReaders(t)
	began := make(chan string, 100)
	read := func(name string, size int64) chan struct{} {
		let := make(chan struct{})
		r.read(size, func() { began <- name; <-let })
		return let
	}
	huge := read("huge", 2*readingMax)
	if x := await(t, "a read", began); x != "huge" {
		t.Fatal(x)
	}
	half := read("half", readingMax/2)
	small := []chan struct{}{read("small", readingMax/4), read("small", readingMax/4)}
	last := read("last", 1)
	if len(began) > 0 || !r.saturated() {
		t.Error("more begins beside what is too long by itself")
	}
	close(huge)
	got := []string{await(t, "a read", began), await(t, "a read", began), await(t, "a read", began)}
	slices.Sort(got)
	if !slices.Equal(got, []string{"half", "small", "small"}) || len(began) > 0 {
		t.Errorf("after it: %v", got)
	}
	close(small[0])
	if x := await(t, "a read", began); x != "last" {
		t.Error(x)
	}
	close(half)
	close(small[1])
	close(last)
}

// The queue does not grow while it is never empty.
func TestReadersQueueStaysSmall(t *testing.T) {
	r := newReaders(t)
	let := make(chan struct{})
	for range readersMax {
		r.read(1, func() { <-let })
	}
	step := make(chan struct{})
	for range 100 {
		r.read(1, func() { <-step })
	}
	close(let)
	for range 20000 {
		r.read(1, func() { <-step })
		step <- struct{}{}
	}
	r.mu.Lock()
	size := cap(r.queue)
	r.mu.Unlock()
	if size > 10000 {
		t.Errorf("room for %d, and about 100 wait", size)
	}
	close(step)
}
