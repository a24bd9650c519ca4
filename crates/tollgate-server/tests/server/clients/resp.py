"""redis-py against the RESP door: both protocols, a pipeline, a pool of threads."""

import sys
import threading

import redis

port = int(sys.argv[1])

two = redis.Redis(port=port, protocol=2, decode_responses=True)
assert two.ping() is True
assert two.execute_command("CL.THROTTLE", "py", 15, 30, 60) == [0, 16, 15, -1, 2]
answer = two.execute_command("TOLLGATE", "default", "py")
assert answer == [0, 5, 4, -1, 12000, "admit", 0, 0], answer

three = redis.Redis(port=port, protocol=3, decode_responses=True, client_name="tester")
answer = three.execute_command("TOLLGATE", "default", "py3", 2)
expected = {
    "limited": 0, "limit": 5, "remaining": 3, "retry_after_ms": -1, "reset_after_ms": 24000,
    "reason": "admit", "wait_ms": 0, "fallback": 0,
}
assert answer == expected, answer
assert three.client_getname() == "tester"

pipeline = two.pipeline(transaction=False)
for n in range(100):
    pipeline.execute_command("CL.THROTTLE", f"pipe{n}", 0, 1, 60)
    pipeline.execute_command("CL.THROTTLE", f"pipe{n}", 0, 1, 60)
answers = pipeline.execute()
assert [answer[0] for answer in answers] == [0, 1] * 100, answers

try:
    two.execute_command("TOLLGATE", "nowhere", "x")
    raise SystemExit("an unknown policy is an error")
except redis.ResponseError as error:
    assert str(error).startswith("NOPOLICY"), error

admitted = []
def ask():
    for _ in range(50):
        if two.execute_command("CL.THROTTLE", "shared", 29, 1, 3600)[0] == 0:
            admitted.append(1)
threads = [threading.Thread(target=ask) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(admitted) == 30, len(admitted)
print("fine")
