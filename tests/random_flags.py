#!/usr/bin/env python3
"""Runs train_resnet, train_lm, train_dpgan and train_gcn with random command lines, made from their --help: good
and bad values, random bytes, flags twice, flags that contradict each other, flags from a file and
from the environment. Each must end with a documented exit code before a timeout, and with code 2
must print one line on stderr.

    tests/random_flags.py build/train_resnet build/train_lm build/train_dpgan build/train_gcn   # HEDDLE_RANDOM_RUNS=200 for more
    HEDDLE_RANDOM_SEED=7 HEDDLE_RANDOM_FIRST=31 HEDDLE_RANDOM_RUNS=1 tests/random_flags.py ...

The second repeats one failure, by its seed and its number.
"""
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile

RUNS = int(os.environ.get('HEDDLE_RANDOM_RUNS', '75'))
FIRST = int(os.environ.get('HEDDLE_RANDOM_FIRST', '0'))
SEED = int(os.environ.get('HEDDLE_RANDOM_SEED', '1'))
HANGS_AFTER = 60  # seconds; a run takes one or two
CODES = {0, 1, 2, 3, 75}

# Flags that decide how much work there is get small values wherever these are valid; for all others
# the value follows from its placeholder in the help text.
SMALL = {
    'epochs': ['1'], 'steps': ['1', '2'], 'batch-size': ['1', '2', '4'], 'accumulate': ['1', '2'],
    'global-batch-size': ['2', '4', '8'], 'learners': ['1', '2', '3'], 'threads': ['1', '2'],
    'workers': ['0', '1', '2'], 'image-size': ['4', '8', '16'], 'emsize': ['1', '8'],
    'nhid': ['1', '8'], 'nlayers': ['1', '2'], 'bptt': ['1', '5'], 'generate': ['0', '1', '20'],
    'headroom': ['0', '1'], 'comm-timeout': ['30'], 'arch': ['resnet20', 'resnet18'],
    'preset': ['wlm'], 'hidden': ['1', '8'], 'layers': ['1', '2', '3'], 'teachers': ['1', '4'], 'images-each': ['1', '3'], 'teacher-steps': ['1', '2'],
}
KNOWN = {
    'compress': ['none', 'bf16', 'fp16', 'topk:density=0.1', 'topk:density=0.01,indices=delta',
                 'randomk:density=0.1', 'scalecom:rate=10', 'scalecom:rate=auto',
                 'scalecom:rate=4,beta=0.3,select=exact', 'scalecom:rate=4,values=bf16', 'topk:values=bf16', 'powersgd:values=fp64', 'qsgd:bits=4,bucket=64', 'powersgd:rank=2',
                 'adacomp', 'adacomp:bin=20,scale=bin', 'adacomp:bin=1',
                 'lgc:density=0.01,train=2,gate=10', 'lgc:train=1,codec=paper,order=index,refresh=1', 'lgc:lr=2',
                 'topagg:sigma=2', 'topagg:density=0.2,epsilon=8,output=votes', 'topagg:sigma=1,vote=clip,noise-seed=3',
                 'auto', 'auto:topk', 'scalecom:rate=0', 'topk:density', 'qsgd:bits=40,', ':', 'topk:'],
    'lgreco': ['alpha=1', 'every=2', 'every=epoch,window=1', 'errors=compensated', 'objective=time', 'every=0', 'window='],
    'net': ['1gbit,1ms', '100mbit,1ms,jitter=1ms', '1gbit', '-1gbit,1ms', 'gbit'],
    'headroom-net': ['25gbit,5us', 'fast'],
    'dense-layers': ['.', 'fc', 'decoder|encoder', 'nosuchlayer', '(', '[z-a]', '(a*)*b'],
    'freeze': ['.', 'fc', '^(?!fc)', 'weight', 'nosuchlayer', '(', '^encoder|bias'],
    'trace-steps': ['1:2', '2:1', '1:', ':'], 'save-every': ['1', '0', '1epoch', '2epochs', 'often'],
    'device': ['cpu', 'auto', 'cuda', 'cuda:9', 'gpu'], 'lr-milestones': ['1', '1,2', '2,1', '1,1'],
    'resume': ['auto', 'earlier', 'nowhere', 'data'], 'init': ['earlier', 'data', 'nowhere', 'text.txt'],
    'predict': ['image.png', 'text.txt', 'nowhere.png'], 'plan': ['text.txt', 'nowhere'],
    'trace': ['trace.json', 'data', 'nowhere/trace'], 'config': ['text.txt', 'made.toml', 'nowhere'],
    'output-dir': ['made', 'earlier', 'data', 'text.txt', 'text.txt/run'],
    'data': ['data', 'words', 'graph', 'text.txt', 'nowhere', 'shapes', 'sources', 'sbm', 'sbm:nodes=50,classes=2', 'sbm:nodes=5'],
    'fanout': ['5,5', '2', '0,3', '1,1,1', '-1,2', ','], 'partition': ['ldg', 'random', 'text.txt', 'nowhere'],
    'skew': ['1', '4', 's=2', 'budget=1.5', 'local', 'budget=0', 's=', 'far'],
    'name': ['a', 'a/b', '..', ''], 'prompt': ['the', '', '\xff\xfe'],
}
NUMBERS = ['0', '1', '2', '0.5', '0.1', '-1', '1e-3', '1e300', 'nan', 'inf', '0x10', '1e', '']
BAD = ['', ' ', '-1', '1e99', 'nan', '--', '=', '99999999999999999999', 'x' * 5000, '0 ', '1,2']


def parse_help(text):
    """Returns the flags: name -> (placeholder of the value or '', choices)."""
    flags = {}
    entries = re.split(r'\n(?=  --)', text[text.index('Usage:'):])
    for entry in entries:
        head = re.match(r'  --([a-z0-9-]+)(?: (\S+))?(?:\n|\s{2,}|$)', entry)
        if not head:
            continue
        help_text = ' '.join(entry[head.end():].split())
        listed = re.search(r'one of ([\w, ]+) \(default', help_text)
        choices = listed.group(1).split(', ') if listed else []
        flags[head.group(1)] = (head.group(2) or '', choices)
    return flags


def random_bytes(rng):
    """No zero, which no argument can hold, and no slash: files stay in the folder of the test."""
    out = bytes(rng.choice([c for c in range(1, 256) if c != ord('/')]) for _ in range(rng.randint(1, 30)))
    return b'_' + out if out.startswith(b'.') else out


def value_for(rng, name, word, choices):
    kind = rng.random()
    if kind < 0.04:
        return random_bytes(rng)
    if kind < 0.12:
        value = rng.choice(BAD)
    elif name in SMALL:
        value = rng.choice(SMALL[name])
    elif name in KNOWN:
        value = rng.choice(KNOWN[name])
    elif choices:
        value = rng.choice(choices)
    elif word.startswith(('N', 'X', 'S')):
        value = rng.choice(NUMBERS)
    else:
        value = rng.choice(['text', 'a b', ''])
    return value.encode('utf-8', 'surrogateescape') if name != 'prompt' else value.encode('latin-1')


def random_line(rng, flags):
    """Arguments, lines of a file for --config, environment."""
    arguments, config, environment = [], [], {}
    names = sorted(flags)
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 6, 10])):
        name = rng.choice(names)
        word, choices = flags[name]
        where = rng.random()
        if not word:
            value = rng.choice([b'true', b'false', b'on', b'0', b'maybe'])
            short = (b'--' if rng.random() < 0.7 else b'--no-') + name.encode()
        else:
            value = value_for(rng, name, word, choices)
        if where < 0.08 and b'\n' not in value:
            config.append(name.encode() + b' = "' + value + b'"\n' if word else name.encode() + b' = ' + value + b'\n')
        elif where < 0.14:
            environment[b'HEDDLE_' + name.upper().replace('-', '_').encode()] = value
        elif where < 0.17:
            arguments.append(random_bytes(rng))
        elif where < 0.19:
            arguments.append(rng.choice([b'-h', b'-x', b'--', b'-', b'--nosuchflag', b'--stepss=1', b'']))
        elif not word:
            arguments.append(short if rng.random() < 0.8 else short + b'=' + value)
        elif rng.random() < 0.04:
            arguments.append(b'--' + name.encode())  # without its value
        elif rng.random() < 0.5:
            arguments += [b'--' + name.encode(), value]
        else:
            arguments.append(b'--' + name.encode() + b'=' + value)
        if arguments and rng.random() < 0.1:
            arguments.append(rng.choice(arguments))
    return arguments, config, environment


def write_files(folder):
    rng = random.Random(0)
    for name in ('data', 'words'):
        os.mkdir(f'{folder}/{name}')
    for name in [f'data_batch_{i}' for i in range(1, 6)] + ['test_batch']:
        with open(f'{folder}/data/{name}.bin', 'wb') as file:
            for label in range(4):
                file.write(bytes([label]) + rng.randbytes(3072))
    words = 'the cat sat on a mat and saw the dog run\n'
    for name, lines in (('train', 40), ('valid', 10), ('test', 10)):
        with open(f'{folder}/words/{name}.txt', 'w') as file:
            file.write(words * lines)
    with open(f'{folder}/text.txt', 'w') as file:
        file.write(words * 60)
    os.mkdir(f'{folder}/graph')
    for name, lines in (('labels', [f'class {v % 3}' for v in range(40)]), ('features', [f'{v % 3} {3 + v % 5}' for v in range(40)]),
                        ('edges', [f'{v} {(v * v + 3) % 40}' for v in range(40)])):
        with open(f'{folder}/graph/{name}.txt', 'w') as file:
            file.writelines(f'{line}\n' for line in lines)


def no_core():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(program, arguments, environment, folder):
    clean = {k: v for k, v in os.environb.items() if not k.startswith(b'HEDDLE_')}
    clean.update({b'OMP_WAIT_POLICY': b'passive', **environment})
    return subprocess.run([program, *arguments], cwd=folder, env=clean, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=HANGS_AFTER,
                          preexec_fn=no_core)


def main():
    programs = [os.path.realpath(p) for p in sys.argv[1:]]
    if len(programs) != 4:
        sys.exit(__doc__)
    base = [[b'--data', b'data', b'--arch', b'resnet20', b'--image-size', b'8', b'--batch-size', b'4'],
            [b'--data', b'text.txt', b'--emsize', b'8', b'--nhid', b'8', b'--nlayers', b'1',
             b'--batch-size', b'4', b'--bptt', b'5', b'--generate', b'0'],
            [b'--teachers', b'8', b'--images-each', b'2', b'--epochs', b'1', b'--dp-anyway'],
            [b'--data', b'graph', b'--batch-size', b'4']]
    common = [b'--threads', b'1', b'--no-tensorboard', b'--print-freq', b'1', b'--quiet', b'--steps', b'2']
    failures, codes = 0, {}
    for number in range(FIRST, FIRST + RUNS):
        which = number % 4
        program = programs[which]
        with tempfile.TemporaryDirectory() as folder:
            write_files(folder)
            shown = run(program, [b'--help'], {}, folder)
            flags = parse_help(shown.stdout.decode())
            if shown.returncode != 0 or len(flags) < 60:
                sys.exit(f'{program} --help: {len(flags)} flags were found')
            rng = random.Random(f'{SEED} {number}')
            arguments, config, environment = random_line(rng, flags)
            line = base[which] + (common[:-2] if b'--evaluate' in arguments else common) + [b'--output-dir', b'run'] + arguments
            if config:
                with open(f'{folder}/made.toml', 'wb') as file:
                    file.writelines(config)
                line = [b'--config', b'made.toml'] + line
            if any(b'earlier' in a for a in arguments):
                run(program, base[which] + common + [b'--output-dir', b'earlier'], {}, folder)
            try:
                ended = run(program, line, environment, folder)
                code, said = ended.returncode, ended.stderr
            except subprocess.TimeoutExpired as late:
                code, said = f'none after {HANGS_AFTER} s', late.stderr or b''
        codes[code] = codes.get(code, 0) + 1
        lines = said.splitlines()
        errors = [l for l in lines if l.startswith(os.path.basename(program).encode() + b': ')]
        quiet = not any(b'quiet' in text for text in arguments)
        refused = len(errors) == 1 and lines[-1] == errors[0] and (not quiet or len(lines) == 1)
        if code in CODES and (code != 2 or refused) and (code not in (1, 3) or lines):
            continue
        failures += 1
        shell = ' '.join([f'{k.decode()}={shlex.quote(repr(v)[2:-1])}' for k, v in environment.items()] +
                         [os.path.basename(program)] + [shlex.quote(repr(a)[2:-1]) for a in line])
        print(f'FAIL: run {number} of seed {SEED}: exit code {code}, {len(lines)} lines on stderr\n'
              f'  {shell}\n  made.toml: {config}\n  {said[-600:]!r}')
    print(f'{RUNS} random command lines, seed {SEED}, from {FIRST} on; exit codes: '
          + ', '.join(f'{n} times {code}' for code, n in sorted(codes.items(), key=str)))
    sys.exit(1 if failures else 0)


main()
