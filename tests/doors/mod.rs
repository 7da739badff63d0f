//! What anybody who reaches the ports can do, and what they cannot. `README.md` beside this file says
//! which test stands for which fault that other servers had.

mod busy_models;
mod compressed;
mod connections;
mod cross_origin;
mod every_route;
mod flooding_workers;
mod floods;
mod gone_clients;
mod grpc_messages;
mod grpc_tuning;
mod hostile_workers;
mod kills;
mod loads;
mod log_lines;
mod many_instances;
mod memory;
mod models_apart;
mod pages;
mod restricted;
mod routes;
mod shapes;
mod shared_memory;
mod slow_clients;
pub(crate) mod tls;
mod tls_clients;
mod unix_sockets;
mod windows;
