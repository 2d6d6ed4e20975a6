package harness

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
)

// Metric is the value of one sample in what /metrics answers; sample is the name with its labels as
// they are printed there, such as `gemel_checksum_blocks_total{event="healed"}`. One that is not
// there is an error, not 0.
func Metric(answer, sample string) (float64, error) {
	for s := bufio.NewScanner(strings.NewReader(answer)); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), sample+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return 0, fmt.Errorf("harness: metric %s: %w", sample, err)
			}
			return v, nil
		}
	}
	return 0, fmt.Errorf("harness: no metric %s in %d bytes", sample, len(answer))
}

// Healed is the sample that counts blocks that did not match their checksums and were written again
// from the other node.
const Healed = `gemel_checksum_blocks_total{event="healed"}`
