"""The program image that sequences load: kernels as PTX, on one line each for the sequence's notation.

`fill` ignores NULL: launches whose parameters are set by separate calls continue where memory was refused. `move`
writes three times the read value plus one, `spin` runs for so many nanoseconds.
"""

PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 counter[4] = {1, 2, 3, 4};
.visible .entry nothing() { ret; }
.visible .entry fill(.param .u64 p, .param .u32 v, .param .u32 n) {
 .reg .pred %q; .reg .b32 %a, %b, %c, %d, %v, %n; .reg .b64 %p, %o;
 ld.param.u64 %p, [p]; ld.param.u32 %v, [v]; ld.param.u32 %n, [n];
 cvta.to.global.u64 %p, %p;
 mov.u32 %a, %ctaid.x; mov.u32 %b, %ntid.x; mov.u32 %c, %tid.x; mad.lo.s32 %d, %a, %b, %c;
 setp.eq.u64 %q, %p, 0; @%q bra done; setp.ge.u32 %q, %d, %n; @%q bra done;
 mul.wide.u32 %o, %d, 4; add.s64 %p, %p, %o; add.s32 %v, %v, %d; st.global.u32 [%p], %v;
done: ret; }
.visible .entry move(.param .u64 to, .param .u64 from, .param .u32 n) {
 .reg .pred %q; .reg .b32 %a, %b, %c, %d, %v, %n; .reg .b64 %p, %s, %o;
 ld.param.u64 %p, [to]; ld.param.u64 %s, [from]; ld.param.u32 %n, [n];
 cvta.to.global.u64 %p, %p; cvta.to.global.u64 %s, %s;
 mov.u32 %a, %ctaid.x; mov.u32 %b, %ntid.x; mov.u32 %c, %tid.x; mad.lo.s32 %d, %a, %b, %c;
 setp.ge.u32 %q, %d, %n; @%q bra done;
 mul.wide.u32 %o, %d, 4; add.s64 %p, %p, %o; add.s64 %s, %s, %o;
 ld.global.u32 %v, [%s]; mad.lo.s32 %v, %v, 3, 1; st.global.u32 [%p], %v;
done: ret; }
.visible .entry spin(.param .u64 ns) {
 .reg .pred %q; .reg .b64 %n, %s, %t;
 ld.param.u64 %n, [ns]; mov.u64 %s, %globaltimer;
again: mov.u64 %t, %globaltimer; sub.u64 %t, %t, %s; setp.lt.u64 %q, %t, %n; @%q bra again;
 ret; }
.visible .entry bounded() .maxntid 64, 1, 1 { ret; }
.visible .entry trap_always() { trap; ret; }
""".replace("\n", " ")
