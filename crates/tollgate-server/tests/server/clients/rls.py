"""grpcio against the gRPC door: the service is found by reflection, health is asked, limits are kept under threads."""

import sys
import threading

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1])
database = ProtoReflectionDescriptorDatabase(channel)
service = "envoy.service.ratelimit.v3.RateLimitService"
assert service in database.get_services(), list(database.get_services())
assert "grpc.health.v1.Health" in database.get_services()

pool = descriptor_pool.DescriptorPool(database)
method = pool.FindServiceByName(service).methods_by_name["ShouldRateLimit"]
Request = message_factory.GetMessageClass(method.input_type)
Response = message_factory.GetMessageClass(method.output_type)
should_rate_limit = channel.unary_unary(
    f"/{service}/ShouldRateLimit",
    request_serializer=Request.SerializeToString,
    response_deserializer=Response.FromString,
)


def ask(value, hits=None, domain="d"):
    request = Request(domain=domain)
    descriptor = request.descriptors.add()
    descriptor.entries.add(key="database", value=value)
    if hits is not None:
        descriptor.hits_addend.value = abs(hits)
        descriptor.is_negative_hits = hits < 0
    return should_rate_limit(request, timeout=5)


answer = ask("py")
assert (answer.overall_code, answer.statuses[0].limit_remaining) == (1, 4), answer
assert answer.statuses[0].current_limit.name == "database", answer
assert ask("py", 0).statuses[0].limit_remaining == 4
assert ask("py", 4).overall_code == 1
refused = ask("py")
assert refused.overall_code == 2 and refused.statuses[0].duration_until_reset.seconds in (11, 12), refused
assert ask("py", -2).statuses[0].limit_remaining == 2
assert ask("py", domain="elsewhere").overall_code == 1

admitted = []
def many():
    for _ in range(20):
        if ask("shared").overall_code == 1:
            admitted.append(1)
threads = [threading.Thread(target=many) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(admitted) == 5, len(admitted)

health = health_pb2_grpc.HealthStub(channel)
assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == 1
try:
    channel.unary_unary("/no.such.Service/Call")(b"", timeout=5)
    raise SystemExit("no such service")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
print("fine")
