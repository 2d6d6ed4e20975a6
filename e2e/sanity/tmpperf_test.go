package sanity
import ("testing";"time";"sync";"math/rand/v2";"os/exec";"os";"fmt";"strings")
func TestTmpPerf(t *testing.T){
 e:=start(t,3*time.Minute)
 v:=e.create("perf",1024*mib,raw(writer),nil).up()
 f:=v.open()
 for _,bs:=range []int{1<<20}{ st:=time.Now(); var wg sync.WaitGroup
  for w:=range 8 { wg.Go(func(){ b:=aligned(bs,byte(w+1)); for i:=0;i<1024/8;i++{ if _,err:=f.WriteAt(b,int64(w*128+i)*mib);err!=nil{t.Error(err)}}})}
  wg.Wait(); t.Logf("seq write 1M x8: %.0f MB/s", 1024/time.Since(st).Seconds())
  st=time.Now()
  for w:=range 8 { wg.Go(func(){ b:=aligned(bs,0); for i:=0;i<1024/8;i++{ if _,err:=f.ReadAt(b,int64(w*128+i)*mib);err!=nil{t.Error(err)}}})}
  wg.Wait(); t.Logf("seq read 1M x8: %.0f MB/s", 1024/time.Since(st).Seconds())
 }
 for _,qd:=range []int{1,32}{ for _,wr:=range []bool{false,true}{
  var n [64]int; var wg sync.WaitGroup; end:=time.Now().Add(3*time.Second)
  for w:=range qd { wg.Go(func(){ b:=aligned(4096,1); for time.Now().Before(end){ off:=rand.Int64N(256*1024)*4096; var err error; if wr{_,err=f.WriteAt(b,off)}else{_,err=f.ReadAt(b,off)}; if err!=nil{t.Error(err);return}; n[w]++}})}
  wg.Wait(); s:=0; for _,x:=range n{s+=x}; t.Logf("4k qd%d write=%v: %d IOPS",qd,wr,s/3)}}
 out,_:=exec.Command("ps","-o","pid,rss,vsz,nlwp,args","-p",fmt.Sprint(v.holder())).CombinedOutput(); t.Log(string(out))
 b,_:=os.ReadFile(fmt.Sprintf("/proc/%d/status",v.holder())); for _,l:=range strings.Split(string(b),"\n"){ if strings.HasPrefix(l,"Vm")||strings.HasPrefix(l,"Threads"){t.Log(l)}}
 q,_:=exec.Command("sh","-c","grep . /sys/block/loop0/queue/{logical_block_size,physical_block_size,max_sectors_kb,discard_granularity,discard_max_bytes,write_zeroes_max_bytes,nr_requests,write_cache,scheduler} 2>&1; cat /sys/block/loop0/loop/dio; losetup -l").CombinedOutput(); t.Log(string(q))
 hl,_:=os.ReadFile(v.folder()+"/holder.log"); t.Log(string(hl))
 f.Close(); v.down()
}
