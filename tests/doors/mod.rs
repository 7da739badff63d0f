//! What anybody who reaches the ports can do, and what they cannot.

mod busy_models;
mod connections;
mod grpc_messages;
mod grpc_tuning;
mod hostile_workers;
mod memory;
mod models_apart;
mod pages;
mod restricted;
mod routes;
mod shared_memory;
mod tls;
mod tls_clients;
mod unix_sockets;
