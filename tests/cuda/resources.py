#!/usr/bin/env python3
"""Prints the resources of a GPU that each CUDA kernel uses, as a Markdown table.

    AFT_LAUNCH_LOG=launches.txt ctest -L cuda_on_cpu      # which blocks the host code launches
    tests/cuda/resources.py build/cuda/model/kernels/cuda/libaft_cuda_kernels.a --launches launches.txt

Registers, stack and static shared memory come from the binary (cuobjdump of the CUDA toolkit).
Threads of a block and dynamic shared memory come from the log that tests/support/cuda_on_cpu writes.
For each kernel the table has the launch with the fewest resident warps on a multiprocessor.

The exit status is 1 when a kernel that ALLOWED does not name uses local memory (a stack frame, a
spill). It is also 1 when a GPU would refuse a launch because it has more threads than
__launch_bounds__, or needs more registers or shared memory than the GPU has.
"""

import argparse
import collections
import math
import re
import subprocess
import sys

# Regular expression of a kernel's name -> why it may use local memory.
ALLOWED = {}

# The limits of a multiprocessor. Shared memory is in bytes. Every block uses RESERVED bytes of it,
# which cuobjdump adds to the kernel's.
SHARED_OF = {'sm_80': 164 << 10, 'sm_90': 228 << 10}
RESERVED = 1024
REGISTERS = 65536
WARPS = 64
BLOCKS = 32
MOST_THREADS = 1024  # of a block

Usage = collections.namedtuple('Usage', 'registers stack shared local')


def short_name(demangled):
    """Returns a kernel's name without return type, parameters and our namespace."""
    depth = 0
    end = len(demangled)
    text = demangled.replace('(anonymous namespace)::', '')
    for i, c in enumerate(text):
        depth += {'<': 1, '>': -1}.get(c, 0)
        if c == '(' and depth == 0:
            end = i
            break
    text = text[:end]
    text = text[5:] if text.startswith('void ') else text
    return re.sub(r'aft::kernels::cuda::|aft::kernels::', '', text)


def demangle(names):
    text = subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True, text=True,
                          check=True).stdout
    return dict(zip(names, map(short_name, text.splitlines())))


def sections(cuobjdump, option, binaries, function):
    """Yields (architecture, mangled name, line) of the lines that follow each function's heading."""
    heading = re.compile(function)
    for binary in binaries:
        lines = subprocess.run([cuobjdump, option, binary], capture_output=True, text=True,
                               check=True).stdout.splitlines()
        arch = name = None
        for line in lines:
            if match := re.match(r'\s*arch = (\w+)', line):
                arch, name = match[1], None
            elif match := heading.match(line):
                name = match[1]
            elif name:
                yield arch, name, line


def resource_usage(cuobjdump, binaries):
    """Returns {architecture: {mangled name: Usage}}."""
    usage = collections.defaultdict(dict)
    for arch, name, line in sections(cuobjdump, '--dump-resource-usage', binaries,
                                     r'\s*Function ([\w$.]+):'):
        values = dict(re.findall(r'(\w+)(?:\[\d+\])?:(\d+)', line))
        if 'REG' in values:
            usage[arch][name] = Usage(int(values['REG']), int(values['STACK']),
                                      max(0, int(values['SHARED']) - RESERVED), int(values['LOCAL']))
    return usage


def most_threads(cuobjdump, binaries):
    """Returns {mangled name: the most threads of a block by __launch_bounds__}."""
    most = {}
    threads_follow = False
    for _, name, line in sections(cuobjdump, '--dump-elf', binaries, r'\.nv\.info\.([\w$.]+)'):
        if 'EIATTR_' in line:
            threads_follow = 'EIATTR_MAX_THREADS' in line
        elif threads_follow and (match := re.match(r'\s*Value:((?:\s+0x[0-9a-f]+){3})', line)):
            most[name] = math.prod(int(value, 16) for value in match[1].split())
    return most


def launches(path):
    """Returns {short name: set of (threads, dynamic shared bytes)}."""
    found = collections.defaultdict(set)
    with open(path, encoding='utf-8') as log:
        for line in log:
            threads, shared, name = line.rstrip('\n').split('\t')
            found[short_name(name)].add((int(threads), int(shared)))
    return found


def resident_blocks(arch, usage, threads, dynamic_shared):
    """Returns the number of blocks that fit on one multiprocessor, by NVIDIA's occupancy formula."""
    warps = math.ceil(threads / 32)
    of_warp = math.ceil(usage.registers * 32 / 256) * 256
    by_registers = REGISTERS // of_warp // 4 * 4 // warps
    shared = math.ceil((usage.shared + dynamic_shared) / 128) * 128 + RESERVED
    by_shared = SHARED_OF[arch] // shared
    return min(BLOCKS, WARPS // warps, by_registers, by_shared)


def print_table(head, rows):
    print('| ' + ' | '.join(head) + ' |')
    print('|' + '---|' * len(head))
    for row in rows:
        print('| ' + ' | '.join(map(str, row)) + ' |')


def resource_row(name, mangled, usage, found):
    archs = sorted(usage)
    used = {arch: usage[arch][mangled] for arch in archs}
    row = [f'`{name}`', '/'.join(str(used[arch].registers) for arch in archs),
           '/'.join(str(used[arch].stack + used[arch].local) for arch in archs)]
    if name not in found:
        return row + ['not launched'] + [''] * (1 + len(archs))

    def warps(launch):
        threads, shared = launch
        return [resident_blocks(arch, used[arch], threads, shared) * math.ceil(threads / 32)
                for arch in archs]

    worst = min(found[name], key=warps)
    row += [worst[0], worst[1] + used[archs[-1]].shared]
    for arch, count in zip(archs, warps(worst)):
        row.append(f'{count // math.ceil(worst[0] / 32)} blocks, {count} warps, {100 * count // WARPS} %')
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('binaries', nargs='+', help='objects or libraries made by nvcc')
    parser.add_argument('--launches', help='the file that AFT_LAUNCH_LOG named when the tests ran')
    parser.add_argument('--cuobjdump', default='cuobjdump')
    args = parser.parse_args()

    usage = resource_usage(args.cuobjdump, args.binaries)
    if not usage:
        sys.exit('no kernels in ' + ' '.join(args.binaries))
    names = demangle(sorted(set().union(*(usage[arch] for arch in usage))))
    shown = sorted((name, mangled) for mangled, name in names.items()
                   if all(mangled in usage[arch] for arch in usage))
    found = launches(args.launches) if args.launches else {}
    archs = sorted(usage)
    print_table(['kernel', 'registers ' + '/'.join(archs), 'local bytes', 'threads', 'shared bytes', *archs],
                [resource_row(name, mangled, usage, found) for name, mangled in shown])

    local = {name for name, mangled in shown for arch in usage
             if usage[arch][mangled].stack + usage[arch][mangled].local > 0}
    status = 0
    for name in sorted(local):
        reason = next((why for pattern, why in ALLOWED.items() if re.search(pattern, name)), None)
        print(f'local memory: {name}: {reason or "not allowed"}', file=sys.stderr)
        status = status if reason else 1
    most = most_threads(args.cuobjdump, args.binaries) if found else {}
    for name, mangled in shown:
        for threads, shared in sorted(found.get(name, ())):
            if threads > most.get(mangled, MOST_THREADS) or not all(
                    resident_blocks(arch, usage[arch][mangled], threads, shared) for arch in archs):
                print(f'refused: {name}: {threads} threads, {shared} bytes', file=sys.stderr)
                status = 1
    return status


if __name__ == '__main__':
    sys.exit(main())
